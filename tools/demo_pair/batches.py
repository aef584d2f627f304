"""Training batches: new pictures with several samples each, as tensors."""

import itertools
import random
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3VLForConditionalGeneration

from lmms_eval_mai.harness.shapes import LETTERS

from .network import GRID, IMAGE_TOKENS, patches_of
from .samples import Sample, draw_pictures, draw_sample
from .shapes import COLOURS, SHAPES, SIDE, Cells, Question, matches, walk

COLOUR_WORDS, SHAPE_WORDS = (*COLOURS, "empty"), (*SHAPES, "cell")
GROUPS = 4
"""Parts of a batch, by length: little is padded."""
SHORT = 8
"""A response of fewer tokens is a short answer."""
SHORT_WEIGHT, LETTER_WEIGHT = 4.0, 8.0
"""Of each token of a short answer, and of an option's letter in thinking; that of any other is 1."""


@dataclass(frozen=True)
class Group:
    """Samples of about the same length, padded on the right."""

    picture: Tensor
    """[samples]: which of the batch's pictures each is about."""
    tokens: Tensor
    """[samples, length]"""
    labels: Tensor
    """[samples, length]: the token that comes next, -100 where it is no part of the response."""
    weights: Tensor
    """[samples, length]: of each token to learn."""
    asked: Tensor
    """[samples]: where the model has to know what is asked: the end of the prompt; of a short answer the token after,
    its opening brackets, which the answer follows."""
    places: Tensor
    """[samples, 2 * cells]: `places_of` each question."""
    options: Tensor
    """[samples, 4]: the last word of each option; -1 for a question without."""
    naming: Tensor
    """[samples]: the token that the right option's letter follows for the first time; 0 for a question without."""
    right: Tensor
    """[samples]: the number of the right option, -1 for a question without."""

    def to(self, device: str) -> "Group":
        return Group(*(getattr(self, one.name).to(device) for one in fields(self)))


@dataclass(frozen=True)
class Batch:
    """The work of one step."""

    patches: Tensor
    """[pictures, patches, values]"""
    cells: Tensor
    """[pictures, cells, 2]: number of each cell's colour word and shape word."""
    groups: list[Group]
    samples: list[list[Sample]]
    """Those of each group."""

    def to(self, device: str) -> "Batch":
        groups = [group.to(device) for group in self.groups]
        return Batch(self.patches.to(device), self.cells.to(device), groups, self.samples)


class Batches:
    """Draws what one model is trained on."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, name: str) -> None:
        self.tokenizer = tokenizer
        self.name = name
        picture = f"<|vision_start|>{'<|image_pad|>' * IMAGE_TOKENS}<|vision_end|>"
        self.opening = f"<|im_start|>user\n{picture}"
        self.letters = {
            token for letter in LETTERS for ids in tokenizer([letter, f" {letter}"]).input_ids for token in ids
        }
        self.openings = [tuple(tokenizer(f"{letter}.").input_ids) for letter in LETTERS]
        self.closing = "<|im_end|>\n<|im_start|>assistant\n"

    def positions(self, model: Qwen3VLForConditionalGeneration) -> Tensor:
        """[3, 1, tokens]: the model's own positions of a long prompt; all samples have the same."""
        tokens = self.tokenizer([self.opening + " step" * 1000], return_tensors="pt").input_ids
        kinds = (tokens == model.config.image_token_id).int()
        grid = torch.tensor([[1, GRID, GRID]])
        return model.model.get_rope_index(tokens, mm_token_type_ids=kinds, image_grid_thw=grid)[0]

    def draw(self, rng: random.Random, pictures: int, samples: int) -> Batch:
        """`pictures` new ones with `samples` each."""
        drawn = draw_pictures(rng, pictures)
        numbered = [
            (index, draw_sample(rng, cells, self.name))
            for index, (cells, _) in enumerate(drawn)
            for _ in range(samples)
        ]
        numbered.sort(key=lambda item: len(self.tokenizer(item[1].prompt + item[1].response).input_ids))
        size = len(numbered) // GROUPS
        parts = [numbered[i : i + size] for i in range(0, len(numbered), size)]
        return Batch(
            patches_of([picture for _, picture in drawn]),
            torch.tensor([_words(cells) for cells, _ in drawn]),
            [self.group([i for i, _ in part], [sample for _, sample in part]) for part in parts],
            [[sample for _, sample in part] for part in parts],
        )

    def group(self, picture: list[int], samples: list[Sample]) -> Group:
        prompts = self.tokenizer([self.opening + sample.prompt + self.closing for sample in samples]).input_ids
        responses = self.tokenizer([sample.response + "<|im_end|>" for sample in samples]).input_ids
        length = max(len(a) + len(b) for a, b in zip(prompts, responses, strict=True))
        length = (length + 15) // 16 * 16  # few shapes to compile for
        tokens = torch.full((len(samples), length), self.tokenizer.pad_token_id)
        labels = torch.full((len(samples), length), -100)
        weights = torch.zeros(len(samples), length)
        asked = torch.zeros(len(samples), dtype=torch.long)
        for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
            tokens[row, : len(prompt) + len(response)] = torch.tensor(prompt + response)
            learnt = slice(len(prompt) - 1, len(prompt) + len(response) - 1)
            labels[row, learnt] = torch.tensor(response)
            short = len(response) < SHORT
            weights[row, learnt] = torch.tensor([self._weight(token, short) for token in response])
            asked[row] = len(prompt) - 1 + short
        destination = self.name == "large"
        places = [places_of(sample.question, sample.cells, destination) for sample in samples]
        options = torch.tensor([self._options(prompt) for prompt in prompts])
        right = [LETTERS.index(sample.letter) if sample.letter else -1 for sample in samples]
        letters = torch.isin(labels, torch.tensor(sorted(self.letters))) & (options[:, :1] >= 0)
        return Group(
            torch.tensor(picture),
            tokens,
            labels,
            weights,
            asked,
            torch.tensor(places),
            options,
            letters.int().argmax(1),
            torch.tensor(right),
        )

    def _weight(self, token: int, short: bool) -> float:
        if short:
            return SHORT_WEIGHT
        return LETTER_WEIGHT if token in self.letters else 1.0

    def _options(self, prompt: list[int]) -> list[int]:
        """Where the options end. "A. red circle" and "A. 3" both have three tokens after the letter's."""
        follows = itertools.pairwise(prompt)
        starts = {pair[0]: index for index, pair in enumerate(follows) if pair in self.openings}
        return [starts.get(letter, -4) + 3 for letter, _ in self.openings]


def places_of(question: Question, cells: Cells, destination: bool) -> list[float]:
    """For each cell, whether the question is about it; then the same for the other side of a comparison or, if
    `destination`, the end of a path. -1 where there is no such second."""
    if question.category == "where":
        first = [divmod(i, SIDE) == question.place for i in range(len(cells))]
    else:
        first = [matches(cell, question.subjects[0]) for cell in cells]
    second = [-1.0] * len(cells)
    if question.category == "compare":
        second = [float(matches(cell, question.subjects[1])) for cell in cells]
    if question.category == "path" and destination:
        end = (walk(divmod(cells.index(question.subjects[0]), SIDE), question.moves) or [])[-1]
        second = [float(divmod(i, SIDE) == end) for i in range(len(cells))]
    return [*map(float, first), *second]


def _words(cells: Cells) -> list[list[int]]:
    return [[COLOUR_WORDS.index(a), SHAPE_WORDS.index(b)] for a, b in (cell.split() for cell in cells)]
