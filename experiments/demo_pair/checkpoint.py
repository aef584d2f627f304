"""A Qwen3-VL checkpoint of a few million parameters: tokenizer, processor and an untrained model."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer, Qwen3VLForConditionalGeneration, Qwen3VLProcessor

from . import qwen3vl
from .qwen3vl import CHAT_TEMPLATE, SPECIAL
from .samples import draw_sample
from .shapes import CELL, SIDE, random_cells

VOCABULARY = 900
"""Upper limit: 256 bytes, the special tokens, and enough merges to make each word of the domain one token."""

CONTEXT = 2048


@dataclass(frozen=True)
class Size:
    """The size of one model."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    vision_hidden: int
    vision_layers: int
    patch: int
    """Width of a patch in px. The patches of a cell are merged into one token."""
    places_layer: int
    """For training: the number of layers after which the model must know which cells the question is about."""


SIZES = {
    "small": Size(
        hidden=96, layers=3, heads=4, intermediate=192, vision_hidden=16, vision_layers=1, patch=16, places_layer=3
    ),
    "large": Size(
        hidden=144, layers=6, heads=4, intermediate=400, vision_hidden=48, vision_layers=2, patch=8, places_layer=5
    ),
}


def make_tokenizer(seed: int) -> Qwen2Tokenizer:
    """Return a tokenizer that splits words as Qwen's does. Its vocabulary is trained on prompts and responses."""
    blank = Qwen2Tokenizer(vocab={}, merges=[], eos_token="<|im_end|>", pad_token="<|endoftext|>", unk_token=None)
    tokenizer = blank.train_new_from_iterator(_texts(seed), VOCABULARY, new_special_tokens=SPECIAL)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.model_max_length = CONTEXT
    return tokenizer


def _texts(seed: int) -> Iterator[list[str]]:
    rng = random.Random(seed)
    for _ in range(1000):
        sample = draw_sample(rng, random_cells(rng), "large", transfer_answer="keep")
        yield ["user", "assistant", sample.prompt, sample.response]


def make_processor(tokenizer: PreTrainedTokenizerFast, size: Size) -> Qwen3VLProcessor:
    """Return a processor that keeps the size of the benchmark's images: one merged token per cell."""
    pixels = (SIDE * CELL) ** 2
    return qwen3vl.make_processor(tokenizer, pixels, 4 * pixels, size.patch, CELL // size.patch)


def make_model(size: Size, tokenizer: PreTrainedTokenizerFast) -> Qwen3VLForConditionalGeneration:
    """Return a model with new random weights in fp32. Seed torch before the call."""
    text = {
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
    }
    vision = {
        "depth": size.vision_layers,
        "hidden_size": size.vision_hidden,
        "intermediate_size": 2 * size.vision_hidden,
        "num_heads": size.vision_hidden // 16,
        "patch_size": size.patch,
        "spatial_merge_size": CELL // size.patch,
        "num_position_embeddings": (SIDE * CELL // size.patch) ** 2,
        "deepstack_visual_indexes": [0],
    }
    model = qwen3vl.make_model(tokenizer, text, vision)
    model.set_attn_implementation("eager")
    return model
