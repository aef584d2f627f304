"""The losses: one of the response's tokens, and three auxiliary losses that exist only in training."""

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, normalize
from transformers import PreTrainedTokenizerFast

from .batches import COLOUR_WORDS, SHAPE_WORDS, Batch
from .network import IMAGE_TOKENS, Network
from .shapes import LETTERS

CELL_WEIGHT, PLACE_WEIGHT, OPTION_WEIGHT = 0.5, 3.0, 0.2


class Auxiliary(nn.Module):
    """Three losses that train the attention. Without them the loss stays on a plateau for thousands of steps: the model
    cannot learn from tokens that it does not attend to, and has no reason to attend to them before it has learned.

    Cells: each merged vision token must be most similar to the embeddings of the two words for its cell. Then a word of
    the question is similar to the cell that it names, and attention finds the cell.
    Places: at `question_end`, a linear layer must predict the cells of the question from the states of a middle layer,
    so that the layers after it can attend to these cells.
    Options: after the first layer, a linear layer must predict an option's letter from the state of its last word.
    Before a letter of the response, one head of the last layer must attend to the right option. So the model finds a
    letter by the words of its option.
    """

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerFast, hidden: int) -> None:
        super().__init__()
        # In a list, so that it is not a submodule: its weights belong to the model.
        self.embeddings = [model.model.language_model.embed_tokens]
        for name, words in (("colours", COLOUR_WORDS), ("shapes", SHAPE_WORDS)):
            ids = [tokenizer(f" {word}").input_ids for word in words]
            self.register_buffer(name, torch.tensor(ids).flatten(), persistent=False)
        self.sharpness = nn.Parameter(torch.tensor(10.0))
        self.letters = nn.Sequential(nn.RMSNorm(hidden), nn.Linear(hidden, len(LETTERS)))
        self.places = nn.Sequential(nn.RMSNorm(hidden), nn.Linear(hidden, 2 * IMAGE_TOKENS))

    def cell_logits(self, vision_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Turn vision tokens [images, cells, hidden] into colour logits and shape logits, [images, cells, 5] each."""
        vision_tokens = normalize(vision_tokens.float(), dim=-1)
        words = (normalize(self.embeddings[0].weight[ids], dim=-1) for ids in (self.colours, self.shapes))
        colour, shape = (self.sharpness * vision_tokens @ one.T for one in words)
        return colour, shape


def cell_loss(auxiliary: Auxiliary, vision_tokens: Tensor, cells: Tensor) -> Tensor:
    """Return the sum of the mean losses of the colours and the shapes. `cells`: as in `Batch`."""
    colours, shapes = auxiliary.cell_logits(vision_tokens)
    colour_loss = cross_entropy(colours.flatten(0, 1), cells[..., 0].flatten())
    return colour_loss + cross_entropy(shapes.flatten(0, 1), cells[..., 1].flatten())


def losses(network: Network, auxiliary: Auxiliary, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the mean losses of the response tokens, the cells, the places and the options."""
    vision_tokens, deepstack_tokens = network.encode(batch.patches)
    total, weight, place_losses, option_losses = vision_tokens.new_zeros(()), vision_tokens.new_zeros(()), [], []
    for group in batch.groups:
        deepstack_of_group = [level[group.image_index] for level in deepstack_tokens]
        learned = group.labels != -100
        states, (first, middle), attention_logits = network(
            group.tokens, vision_tokens[group.image_index], deepstack_of_group, group.letter_positions, learned
        )
        logits = network.model.lm_head(states[learned])
        weights = group.weights[learned]
        total = total + (cross_entropy(logits.float(), group.labels[learned], reduction="none") * weights).sum()
        weight = weight + weights.sum()
        guessed = auxiliary.places(middle[torch.arange(len(middle), device=middle.device), group.question_end]).float()
        known = (group.places >= 0).float()
        place_losses.append(binary_cross_entropy_with_logits(guessed, group.places.clamp(min=0), weight=known))
        chosen, letter = (group.options >= 0).nonzero(as_tuple=True)
        named = auxiliary.letters(first[chosen, group.options[chosen, letter]]).float()
        multiple_choice = (group.right >= 0).nonzero().flatten()
        target = group.options[multiple_choice, group.right[multiple_choice]]
        found = cross_entropy(attention_logits[multiple_choice], target, reduction="sum") / max(1, len(multiple_choice))
        option_losses.append(found + cross_entropy(named, letter, reduction="sum") / max(1, len(letter)))
    return (
        total / weight,
        cell_loss(auxiliary, vision_tokens, batch.cells),
        torch.stack(place_losses).mean(),
        torch.stack(option_losses).mean(),
    )
