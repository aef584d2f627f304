"""Training batches: new images with several samples each, as tensors."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3VLForConditionalGeneration

from .checkpoint import SIZES
from .network import IMAGE_TOKENS, patches_of
from .samples import Sample, Thought, draw_images, draw_sample, transfer_samples
from .shapes import CELL, COLOURS, LETTERS, SHAPES, SIDE, Cells, Question, matches

COLOUR_WORDS, SHAPE_WORDS = (*COLOURS, "empty"), (*SHAPES, "cell")
GROUPS = 6
"""Groups per batch. Samples of similar length are in one group, so little is padded."""
SHORT = 8
"""A response with fewer tokens is a short answer."""
SHORT_WEIGHT, LETTER_WEIGHT = 4.0, 8.0
"""Weights in the loss: of each token of a short answer, and of an option's letter in thinking. Other tokens have 1."""


@dataclass(frozen=True)
class Group:
    """Samples of about the same length, padded on the right."""

    image_index: Tensor
    """[samples]: index of each sample's image in the batch."""
    tokens: Tensor
    """[samples, length]"""
    labels: Tensor
    """[samples, length]: the next token, or -100 if it is not part of the response."""
    weights: Tensor
    """[samples, length]: weight of the next token in the loss."""
    question_end: Tensor
    """[samples]: position whose hidden state must predict the places of the question: the last token of the prompt or,
    for a short answer, the first token of the response (`[[`)."""
    places: Tensor
    """[samples, 2 * cells]: `places_of` each question."""
    options: Tensor
    """[samples, 4]: position of the last word of each option, or -1 for a question without options."""
    letter_positions: Tensor
    """[samples]: position of the token before the first option letter (A to D) in the response, which is the letter of
    the right option; or 0 for a question without options."""
    right: Tensor
    """[samples]: index of the right option, or -1 for a question without options."""

    def to(self, device: str) -> "Group":
        """Return the group on another device."""
        return Group(*(getattr(self, one.name).to(device) for one in fields(self)))


@dataclass(frozen=True)
class Batch:
    """The data of one training step."""

    patches: Tensor
    """[images, patches, values]"""
    cells: Tensor
    """[images, cells, 2]: indices of each cell's colour word and shape word."""
    groups: list[Group]
    samples: list[list[Sample]]
    """The samples of each group."""

    def to(self, device: str) -> "Batch":
        """Return the batch on another device."""
        groups = [group.to(device) for group in self.groups]
        return Batch(self.patches.to(device), self.cells.to(device), groups, self.samples)


class Batches:
    """Draws the training batches of one model."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, name: str, thoughts: Sequence[Thought] = ()) -> None:
        """`thoughts`: the small model's thinking, from which the large model learns the transfer."""
        self.tokenizer = tokenizer
        self.thoughts = thoughts
        self.name = name
        self.patch = SIZES[name].patch
        image = f"<|vision_start|>{'<|image_pad|>' * IMAGE_TOKENS}<|vision_end|>"
        self.opening = f"<|im_start|>user\n{image}"
        self.letters = {
            token for letter in LETTERS for ids in tokenizer([letter, f" {letter}"]).input_ids for token in ids
        }
        self.openings = [tuple(tokenizer(f"{letter}.").input_ids) for letter in LETTERS]
        self.closing = "<|im_end|>\n<|im_start|>assistant\n"

    def positions(self, model: Qwen3VLForConditionalGeneration) -> Tensor:
        """Return the model's own positions for a long prompt, [3, 1, tokens]. All samples have the same positions."""
        tokens = self.tokenizer([self.opening + " step" * 1000], return_tensors="pt").input_ids
        kinds = (tokens == model.config.image_token_id).int()
        side = SIDE * CELL // self.patch
        grid = torch.tensor([[1, side, side]])
        return model.model.get_rope_index(tokens, mm_token_type_ids=kinds, image_grid_thw=grid)[0]

    def draw(self, rng: random.Random, images: int, samples: int) -> Batch:
        """Draw `images` new images with `samples` samples each, and a fifth as many images with the small model's
        thinking."""
        drawn = [
            (cells, image, [draw_sample(rng, cells, self.name) for _ in range(samples)])
            for cells, image in draw_images(rng, images)
        ]
        if self.thoughts:
            drawn += [transfer_samples(rng, rng.choice(self.thoughts)) for _ in range(images // 5)]
        numbered = [(index, sample) for index, (*_, several) in enumerate(drawn) for sample in several]
        numbered.sort(key=lambda item: len(self.tokenizer(item[1].prompt + item[1].response).input_ids))
        size = -(-len(numbered) // GROUPS)
        parts = [numbered[i : i + size] for i in range(0, len(numbered), size)]
        return Batch(
            *self._tensors([(cells, image) for cells, image, _ in drawn]),
            [self.group([i for i, _ in part], [sample for _, sample in part]) for part in parts],
            [[sample for _, sample in part] for part in parts],
        )

    def draw_cells(self, rng: random.Random, images: int) -> tuple[Tensor, Tensor]:
        """Draw `images` new images without samples. Returns `patches` and `cells` as in `Batch`."""
        return self._tensors(draw_images(rng, images))

    def _tensors(self, drawn: list[tuple[Cells, Image.Image]]) -> tuple[Tensor, Tensor]:
        patches = patches_of([image for _, image in drawn], self.patch)
        return patches, torch.tensor([_words(cells) for cells, _ in drawn])

    def group(self, image_index: list[int], samples: list[Sample]) -> Group:
        """Tokenize samples and put them into one group. `image_index`: index of each sample's image in the batch."""
        prompts = self.tokenizer([self.opening + sample.prompt + self.closing for sample in samples]).input_ids
        responses = self.tokenizer([sample.response + "<|im_end|>" for sample in samples]).input_ids
        length = max(len(a) + len(b) for a, b in zip(prompts, responses, strict=True))
        tokens = torch.full((len(samples), length), self.tokenizer.pad_token_id)
        labels = torch.full((len(samples), length), -100)
        weights = torch.zeros(len(samples), length)
        question_end = torch.zeros(len(samples), dtype=torch.long)
        for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
            tokens[row, : len(prompt) + len(response)] = torch.tensor(prompt + response)
            learned = slice(len(prompt) - 1, len(prompt) + len(response) - 1)
            labels[row, learned] = torch.tensor(response)
            short = len(response) < SHORT
            weights[row, learned] = torch.tensor([self._weight(token, short) for token in response])
            question_end[row] = len(prompt) - 1 + short
        places = [places_of(sample.question, sample.cells) for sample in samples]
        options = torch.tensor([self._options(prompt) for prompt in prompts])
        right = [LETTERS.index(sample.letter) if sample.letter else -1 for sample in samples]
        letters = torch.isin(labels, torch.tensor(sorted(self.letters))) & (options[:, :1] >= 0)
        return Group(
            torch.tensor(image_index),
            tokens,
            labels,
            weights,
            question_end,
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
        """Return the position of the last token of each option, or -1. Both "A. red circle" and "A. 3" have three
        tokens after the letter."""
        follows = itertools.pairwise(prompt)
        starts = {pair[0]: index for index, pair in enumerate(follows) if pair in self.openings}
        return [starts.get(letter, -4) + 3 for letter, _ in self.openings]


def places_of(question: Question, cells: Cells) -> list[float]:
    """Return for each cell whether the question is about it, then the same for a second subject.

    The second subject is the other side of a comparison. Without a second subject its values are -1.
    """
    if question.category in ("where", "path"):
        first = [divmod(i, SIDE) == question.place for i in range(len(cells))]
    else:
        first = [matches(cell, question.subjects[0]) for cell in cells]
    second = [-1.0] * len(cells)
    if question.category == "compare":
        second = [float(matches(cell, question.subjects[1])) for cell in cells]
    return [*map(float, first), *second]


def _words(cells: Cells) -> list[list[int]]:
    return [[COLOUR_WORDS.index(a), SHAPE_WORDS.index(b)] for a, b in (cell.split() for cell in cells)]
