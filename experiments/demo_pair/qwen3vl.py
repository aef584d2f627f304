"""Parts of Qwen3-VL checkpoints of any size: tokenizer, processor, chat template and a model of any size.

They are saved as in real checkpoints, so vLLM and transformers load them by path, offline.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPECIAL += ["<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
# The layout of Qwen3-VL's own template, reduced to what a single- or multi-turn chat with images needs.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string -%}{{ message.content }}"
    "{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part.type == 'video' or 'video' in part -%}"
    "{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif 'text' in part -%}{{ part.text }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}{{ '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
SENTENCES = [
    "Without thinking, directly answer the question using a single word or phrase in the format: [[answer]]",
    "Please think step by step, provide a detailed explanation, then answer with the option's letter.",
    "According to previous thinking: the image shows a dog. Is there a dog in the image? Yes. No. A. B. C. D.",
]
"""Words that become one token each."""


def make_tokenizer(folder: Path, texts: Iterable[str], size: int, context: int) -> Qwen2Tokenizer:
    """Return a byte-level BPE tokenizer, which has tokens for every string, with Qwen's special tokens. `size`: most
    tokens without the special ones. Writes two files."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False))
    vocabulary = json.loads(bpe.to_str())["model"]
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in vocabulary["merges"]]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocabulary["vocab"]))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    return load_tokenizer(folder, SPECIAL, CHAT_TEMPLATE, context)


def load_tokenizer(folder: Path, special: list[str], template: str, context: int) -> Qwen2Tokenizer:
    """Return the tokenizer of the two files that `make_tokenizer` wrote."""
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    tokenizer = Qwen2Tokenizer.from_pretrained(folder, **ends)
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.chat_template = template
    tokenizer.model_max_length = context
    return tokenizer


def make_processor(tokenizer: Any, smallest: int, largest: int, patch: int = 16, merge: int = 2) -> Qwen3VLProcessor:
    """Return a processor with one token per `merge` x `merge` patches of `patch` x `patch` px. Images of `smallest` to
    `largest` pixels keep their size."""
    pixels = {"shortest_edge": smallest, "longest_edge": largest}
    vision = {"patch_size": patch, "temporal_patch_size": 2, "merge_size": merge}
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=pixels, **vision),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(size=pixels, **vision),
        chat_template=CHAT_TEMPLATE,
    )


def make_model(
    tokenizer: Any, text: dict[str, Any], vision: dict[str, Any], theta: float = 10_000.0
) -> Qwen3VLForConditionalGeneration:
    """Return a model with new random weights in fp32. Seed torch before the call. `text`, `vision`: the sizes of the
    two parts, named as in transformers."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    rope = {"rope_type": "default", "rope_theta": theta, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "head_dim": 32,
            "max_position_embeddings": tokenizer.model_max_length,
            "rope_parameters": rope,
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
            "bos_token_id": None,
            **text,
        },
        vision_config={
            "patch_size": 16,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "out_hidden_size": text["hidden_size"],
            **vision,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=text.get("tie_word_embeddings", False),
    )
    model = Qwen3VLForConditionalGeneration(config)
    end_on(model, ids["<|im_end|>"], ids["<|endoftext|>"])
    return model


def end_on(model: Any, end: int, pad: int) -> None:
    """Let a model decode greedily and stop at these tokens."""
    model.generation_config.update(eos_token_id=[end, pad], pad_token_id=pad, do_sample=False)


def draw_larger_weights(model: Any) -> None:
    """Draw all matrices again with a larger standard deviation. With the default initialisation, greedy output would
    ignore image and prompt."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2:
                weight.normal_(0.0, 1.0 if "embed" in name else 0.25)


def save(folder: Path, model: Any, processor: Any) -> None:
    """Write the files of a real checkpoint: bf16 safetensors, configurations, tokenizer, processor, chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    processor.save_pretrained(folder)
    # transformers 5 writes only processor_config.json; vLLM and older tools also read this file.
    processor.image_processor.save_pretrained(folder)
