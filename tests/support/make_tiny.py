"""Tiny random checkpoints for the tests of the code around the models: two of Qwen3-VL, two of Qwen3.5, whose chat
template switches the model's own thinking, and one of InternVL3.5, which cuts images into tiles.

They have the genuine architectures. The weights are random, so the answers are deterministic nonsense.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GotOcr2ImageProcessor,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    InternVLVideoProcessor,
    Qwen2Tokenizer,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
)

from experiments.demo_pair import qwen3vl

CORPUS = [
    *qwen3vl.SENTENCES,
    "How many bars are shown in the chart? What is the value in 2019? 0 1 2 3 4 5 6 7 8 9 %",
]
VISION = {"depth": 3, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "num_position_embeddings": 64}
START, END = "<think>", "</think>"
# The end of Qwen3.5's own template: thinking is on unless the switch is false.
SWITCHED = (
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}{{ '<think>\\n\\n</think>\\n\\n' }}"
    "{%- else -%}{{ '<think>\\n' }}{%- endif -%}{%- endif -%}"
)
HYBRID_TEMPLATE = qwen3vl.CHAT_TEMPLATE.rpartition("{%- if add_generation_prompt -%}")[0] + SWITCHED


def text_sizes(hidden: int, layers: int) -> dict[str, Any]:
    """Return the sizes of a tiny Qwen3 text model."""
    return {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 32,
        "num_key_value_heads": 1,
    }


def _write_qwen(folder: Path, hidden: int, layers: int, seed: int) -> None:
    """Write a checkpoint of about a million parameters."""
    tokenizer = qwen3vl.make_tokenizer(folder, CORPUS, 512, 4096)
    torch.manual_seed(seed)
    vision = VISION | {"deepstack_visual_indexes": [0, 1, 2]}
    model = qwen3vl.make_model(tokenizer, text_sizes(hidden, layers), vision).eval()
    qwen3vl.draw_larger_weights(model)
    # An image has 36 to 64 tokens, so every prompt fills a block of 32 tokens, the smallest unit of a prefix cache.
    qwen3vl.save(folder, model, qwen3vl.make_processor(tokenizer, 192 * 192, 256 * 256))


def _write_hybrid(folder: Path, hidden: int, layers: int, seed: int) -> None:
    """vLLM on a CPU runs this architecture in bfloat16 only, and with linear heads of 128 only."""
    tokenizer = qwen3vl.make_tokenizer(folder, CORPUS, 512, 4096)
    tokenizer.add_tokens([START, END])  # not special: an output shows them
    tokenizer.chat_template = HYBRID_TEMPLATE
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in qwen3vl.SPECIAL}
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    config = Qwen3_5Config(
        text_config={
            **text_sizes(hidden, layers),
            "vocab_size": len(tokenizer),
            "head_dim": 32,
            "max_position_embeddings": tokenizer.model_max_length,
            "rope_parameters": {**rope, "partial_rotary_factor": 0.25},
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 2,
            "eos_token_id": ids["<|im_end|>"],
        },
        vision_config={**VISION, "out_hidden_size": hidden},
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    torch.manual_seed(seed)
    model = Qwen3_5ForConditionalGeneration(config).eval()
    qwen3vl.end_on(model, ids["<|im_end|>"], ids["<|endoftext|>"])
    qwen3vl.draw_larger_weights(model)
    processor = qwen3vl.make_processor(tokenizer, 192 * 192, 256 * 256)
    processor.chat_template = HYBRID_TEMPLATE
    qwen3vl.save(folder, model, processor)


def _write_internvl(folder: Path, hidden: int, layers: int, seed: int) -> None:
    """It has the form of the `-HF` checkpoints: a Qwen3 text model, and a processor that cuts images into up to 12
    tiles and a thumbnail, unless they are square and small. A tile has 112 px, a patch 14 px, and a token 2 x 2
    patches."""
    # The processor reads these tokens from its tokenizer by name.
    named = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
             "video_token": "<video>"}  # fmt: skip
    # The layout of InternVL's own template: a line break after each image, and no default system message.
    template = qwen3vl.CHAT_TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<IMG_CONTEXT>\\n")
    qwen3vl.make_tokenizer(folder, CORPUS, 512, 4096)
    qwen3vl.load_tokenizer(folder, [*qwen3vl.SPECIAL, *named.values()], template, 4096).save_pretrained(folder)
    tokenizer = Qwen2Tokenizer.from_pretrained(folder, model_specific_special_tokens=named)
    end, pad = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>"))
    text = {"vocab_size": len(tokenizer), "head_dim": 32, "max_position_embeddings": 4096, "eos_token_id": end}
    vision = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2,
              "attention_bias": True, "image_size": [112, 112], "patch_size": [14, 14]}  # fmt: skip
    config = InternVLConfig(
        text_config={"model_type": "qwen3", **text_sizes(hidden, layers), **text, "pad_token_id": pad},
        vision_config=vision,
        image_token_id=tokenizer.context_image_token_id,
        image_seq_length=16,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = InternVLForConditionalGeneration(config).eval()
    qwen3vl.draw_larger_weights(model)
    qwen3vl.end_on(model, end, pad)
    size = {"height": 112, "width": 112}
    processor = InternVLProcessor(
        GotOcr2ImageProcessor(size=size), tokenizer, InternVLVideoProcessor(size=size), 16, chat_template=template
    )
    qwen3vl.save(folder, model, processor)


def _make(folder: Path, write: Callable[[Path, int, int, int], None], small_layers: int = 3) -> tuple[Path, Path]:
    """Write `folder`/small and `folder`/large, unless this version of the code wrote them. Returns both paths."""
    text = b"".join(Path(one).read_bytes() for one in (__file__, qwen3vl.__file__))
    recipe, stamp = hashlib.sha256(text).hexdigest(), folder / "recipe"
    if not stamp.exists() or stamp.read_text() != recipe:
        write(folder / "small", 64, small_layers, 2)
        write(folder / "large", 96, 4, 8)
        stamp.write_text(recipe)
    return folder / "small", folder / "large"


def make_pair(folder: Path) -> tuple[Path, Path]:
    return _make(folder, _write_qwen)


def make_hybrid_pair(folder: Path) -> tuple[Path, Path]:
    return _make(folder, _write_hybrid, 4)


def make_internvl(folder: Path) -> Path:
    return _make(folder, _write_internvl)[0]
