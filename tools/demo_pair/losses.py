"""What is minimised: the response's tokens, and two auxiliary losses that exist in training alone."""

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, normalize
from transformers import PreTrainedTokenizerFast

from .batches import COLOUR_WORDS, SHAPE_WORDS, SHORT, Batch
from .network import IMAGE_TOKENS, Network

SHORT_WEIGHT, CELL_WEIGHT, PLACE_WEIGHT = 4.0, 0.5, 3.0
"""Of each token of a short answer (that of a thinking is 1), and of the two auxiliary losses."""


class Auxiliary(nn.Module):
    """Two losses that say where to look. Without them training stays on a plateau for thousands of steps: nothing can
    be learnt of what is not looked at, and nothing is looked at before it helps.

    Cells: each merged vision token must be most like the embeddings of the two words for its cell. So a word of the
    question and what it names are alike, and attention finds one by the other.
    Places: the last token of the prompt must know which cells the question is about.
    """

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerFast, hidden: int) -> None:
        super().__init__()
        self.embeddings = [model.model.language_model.embed_tokens]  # in a list: its weights are the model's
        for name, words in (("colours", COLOUR_WORDS), ("shapes", SHAPE_WORDS)):
            ids = [tokenizer(f" {word}").input_ids for word in words]
            self.register_buffer(name, torch.tensor(ids).flatten(), persistent=False)
        self.sharpness = nn.Parameter(torch.tensor(10.0))
        self.places = nn.Linear(hidden, 2 * IMAGE_TOKENS)

    def cell_logits(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """[pictures, cells, hidden] -> colour and shape logits, [pictures, cells, 5] each."""
        seen = normalize(seen.float(), dim=-1)
        words = (normalize(self.embeddings[0].weight[ids], dim=-1) for ids in (self.colours, self.shapes))
        colour, shape = (self.sharpness * seen @ one.T for one in words)
        return colour, shape


def losses(network: Network, auxiliary: Auxiliary, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Mean cross-entropy of the response tokens, of the cells, and of the places."""
    seen, deep = network.encode(batch.patches)
    cell_loss = sum(
        cross_entropy(logits.flatten(0, 1), batch.cells[..., i].flatten())
        for i, logits in enumerate(auxiliary.cell_logits(seen))
    )
    total, number, place_losses = seen.new_zeros(()), 0, []
    for group in batch.groups:
        states = network(group.tokens, seen[group.picture], [level[group.picture] for level in deep])
        learnt = group.labels != -100
        logits = network.model.lm_head(states[learnt])
        weights = torch.where(learnt.sum(1) < SHORT, SHORT_WEIGHT, 1.0)[:, None].expand_as(group.labels)[learnt]
        total = total + (cross_entropy(logits.float(), group.labels[learnt], reduction="none") * weights).sum()
        number += int(weights.sum())
        guessed = auxiliary.places(states[torch.arange(len(states), device=states.device), group.last]).float()
        known = (group.places >= 0).float()
        place_losses.append(binary_cross_entropy_with_logits(guessed, group.places.clamp(min=0), weight=known))
    return total / number, cell_loss, torch.stack(place_losses).mean()
