"""What is minimised: the response's tokens, and two auxiliary losses that exist in training alone."""

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, normalize
from transformers import PreTrainedTokenizerFast

from lmms_eval_mai.harness.shapes import LETTERS

from .batches import COLOUR_WORDS, SHAPE_WORDS, Batch
from .network import IMAGE_TOKENS, Network

CELL_WEIGHT, PLACE_WEIGHT, OPTION_WEIGHT = 0.5, 3.0, 0.2


class Auxiliary(nn.Module):
    """Three losses that say where to look. Without them training stays on a plateau for thousands of steps: nothing can
    be learnt of what is not looked at, and nothing is looked at before it helps.

    Cells: each merged vision token must be most like the embeddings of the two words for its cell. So a word of the
    question and what it names are alike, and attention finds one by the other.
    Places: where the answer begins, the model must know which cells the question is about, at a layer after which there
    are others to look at them.
    Options: the last word of each option must know its letter after the first layer, and where a letter is to be named,
    one head of the last layer must look at the right one: a letter is found by its words, and by nothing else.
    """

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerFast, hidden: int) -> None:
        super().__init__()
        self.embeddings = [model.model.language_model.embed_tokens]  # in a list: its weights are the model's
        for name, words in (("colours", COLOUR_WORDS), ("shapes", SHAPE_WORDS)):
            ids = [tokenizer(f" {word}").input_ids for word in words]
            self.register_buffer(name, torch.tensor(ids).flatten(), persistent=False)
        self.sharpness = nn.Parameter(torch.tensor(10.0))
        self.letters = nn.Sequential(nn.RMSNorm(hidden), nn.Linear(hidden, len(LETTERS)))
        self.places = nn.Sequential(nn.RMSNorm(hidden), nn.Linear(hidden, 2 * IMAGE_TOKENS))

    def cell_logits(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """[pictures, cells, hidden] -> colour and shape logits, [pictures, cells, 5] each."""
        seen = normalize(seen.float(), dim=-1)
        words = (normalize(self.embeddings[0].weight[ids], dim=-1) for ids in (self.colours, self.shapes))
        colour, shape = (self.sharpness * seen @ one.T for one in words)
        return colour, shape


def losses(network: Network, auxiliary: Auxiliary, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean cross-entropy of the response tokens, of the cells, of the places, and of the options."""
    seen, deep = network.encode(batch.patches)
    cell_loss = sum(
        cross_entropy(logits.flatten(0, 1), batch.cells[..., i].flatten())
        for i, logits in enumerate(auxiliary.cell_logits(seen))
    )
    total, weight, place_losses, option_losses = seen.new_zeros(()), seen.new_zeros(()), [], []
    for group in batch.groups:
        deep_here = [level[group.picture] for level in deep]
        states, (first, middle), looks = network(group.tokens, seen[group.picture], deep_here, group.naming)
        learnt = group.labels != -100
        logits = network.model.lm_head(states[learnt])
        weights = group.weights[learnt]
        total = total + (cross_entropy(logits.float(), group.labels[learnt], reduction="none") * weights).sum()
        weight = weight + weights.sum()
        guessed = auxiliary.places(middle[torch.arange(len(middle), device=middle.device), group.asked]).float()
        known = (group.places >= 0).float()
        place_losses.append(binary_cross_entropy_with_logits(guessed, group.places.clamp(min=0), weight=known))
        chosen, letter = (group.options >= 0).nonzero(as_tuple=True)
        named = auxiliary.letters(first[chosen, group.options[chosen, letter]]).float()
        asked = (group.right >= 0).nonzero().flatten()
        target = group.options[asked, group.right[asked]]
        found = cross_entropy(looks[asked], target, reduction="sum") / max(1, len(asked))
        option_losses.append(found + cross_entropy(named, letter, reduction="sum") / max(1, len(letter)))
    return total / weight, cell_loss, torch.stack(place_losses).mean(), torch.stack(option_losses).mean()
