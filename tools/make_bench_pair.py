"""Make two Qwen3-VL checkpoints with random weights, offline, in some seconds: DIR/small, DIR/large and DIR/pair.yaml.

    python tools/make_bench_pair.py .checkpoints/bench
    lmms-eval-mai bench --pair .checkpoints/bench/pair.yaml --lengths paper:chartqa

They are for measurements of time on a CPU, where the real models are too slow. Their answers are noise. They have the
architecture of Qwen3-VL-2B and -8B with narrower layers: the width of the language model and the vocabulary are divided
by 10.67, the width of the vision encoder by 9, and the numbers of layers are kept. So the proportions are almost those
of the real models: parameters (20 and 80 million; 1 : 3.9, really 1 : 4.1), layers, and the shares of the vision
encoder and of the output layer.

Tokenizer, processor and chat template are saved as in real checkpoints, so vLLM and transformers load them by path. The
other tools that make checkpoints use the same functions for this.
"""

import argparse
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
VOCABULARY = 14_336
CONTEXT = 8192
PIXELS = 256 * 256, 2048 * 2048
"""Images between these sizes are not resized. The real processor's upper limit is 4096 x 4096, beyond the context."""
SENTENCES = [
    "Without thinking, directly answer the question using a single word or phrase in the format: [[answer]]",
    "Please think step by step, provide a detailed explanation, then answer with the option's letter.",
    "According to previous thinking: the image shows a dog. Is there a dog in the image? Yes. No. A. B. C. D.",
    "How many bars are shown in the chart? What is the value of the bar? 0 1 2 3 4 5 6 7 8 9 %",
]
"""Words that become one token each."""


@dataclass(frozen=True)
class Shape:
    """The size of one model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vision_hidden: int
    vision_intermediate: int
    vision_layers: int
    deepstack: tuple[int, int, int]
    """Layers of the vision encoder whose features go into the language model."""
    tied: bool
    """Whether the output layer is the embedding."""


PRESET = "small: ./small\nlarge: ./large\nmax_new_tokens: 512\n"
"""The file for `pair=`."""
SHAPES = {
    "small": Shape(192, 28, 6, 3, 112, 448, 24, (5, 11, 17), True),
    "large": Shape(384, 36, 12, 3, 128, 480, 27, (8, 16, 24), False),
}


def make_pair(folder: Path) -> Path:
    """Write both checkpoints and `pair.yaml` into the folder. Returns the path of `pair.yaml`."""
    for side, shape in SHAPES.items():
        make(folder / side, shape)
    preset = folder / "pair.yaml"
    preset.write_text(PRESET)
    return preset


def make(folder: Path, shape: Shape) -> None:
    """Write a checkpoint."""
    import torch
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(folder, _texts(), VOCABULARY - len(SPECIAL), CONTEXT)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": shape.hidden,
            "intermediate_size": 3 * shape.hidden,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": 32,
            "max_position_embeddings": CONTEXT,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5_000_000.0,
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
            },
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
            "bos_token_id": None,
            "tie_word_embeddings": shape.tied,
        },
        vision_config={
            "depth": shape.vision_layers,
            "hidden_size": shape.vision_hidden,
            "intermediate_size": shape.vision_intermediate,
            "num_heads": 4,
            "patch_size": 16,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "out_hidden_size": shape.hidden,
            "num_position_embeddings": 48 * 48,
            "deepstack_visual_indexes": list(shape.deepstack),
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=shape.tied,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(shape.layers)
        model = Qwen3VLForConditionalGeneration(config).eval()
    model.generation_config.update(
        eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]], pad_token_id=ids["<|endoftext|>"], do_sample=False
    )
    save(folder, model, make_processor(tokenizer, *PIXELS))


def _texts() -> Iterator[str]:
    """Yield texts of made-up words, so that there are enough tokens for the vocabulary."""
    dice = random.Random(0)
    syllables = [a + b for a in "bcdfghjklmnprstvwz" for b in ("a", "e", "i", "o", "u", "an", "er", "is", "ou")]
    for _ in range(3000):
        yield " ".join("".join(dice.choices(syllables, k=dice.randint(2, 4))) for _ in range(10))
    for sentence in SENTENCES:
        yield from [f"{sentence} {sentence.lower()}"] * 500


def make_tokenizer(folder: Path, texts: Iterable[str], size: int, context: int) -> Any:
    """Return a byte-level BPE tokenizer, which has tokens for every string, with Qwen's special tokens. `size`: most
    tokens without the special ones. Writes two files."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False))
    vocabulary = json.loads(bpe.to_str())["model"]
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in vocabulary["merges"]]
    (folder / "vocab.json").write_text(json.dumps(vocabulary["vocab"]))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    tokenizer = Qwen2Tokenizer.from_pretrained(
        folder, eos_token="<|im_end|>", pad_token="<|endoftext|>", unk_token="<|endoftext|>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.model_max_length = context
    return tokenizer


def make_processor(tokenizer: Any, smallest: int, largest: int, patch: int = 16, merge: int = 2) -> Any:
    """Return a processor with one token per `merge` x `merge` patches of `patch` x `patch` px. Images of `smallest` to
    `largest` pixels keep their size."""
    from transformers import Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    pixels = {"shortest_edge": smallest, "longest_edge": largest}
    vision = {"patch_size": patch, "temporal_patch_size": 2, "merge_size": merge}
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=pixels, **vision),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(size=pixels, **vision),
        chat_template=CHAT_TEMPLATE,
    )


def save(folder: Path, model: Any, processor: Any) -> None:
    """Write the files of a real checkpoint: bf16 safetensors, configurations, tokenizer, processor, chat template."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    processor.save_pretrained(folder)
    # transformers 5 writes only processor_config.json; vLLM and older tools also read this file.
    processor.image_processor.save_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    print(make_pair(parser.parse_args().folder))
