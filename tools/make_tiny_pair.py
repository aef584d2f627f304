"""Make two tiny random Qwen3-VL checkpoints, offline, in seconds: DIR/small and DIR/large.

They have the genuine architecture. Tokenizer, processor and chat template are saved as in real checkpoints, so vLLM and
transformers load them by path. The weights are random, so the answers are deterministic nonsense: the checkpoints are
for tests of the code around the models.

    python tools/make_tiny_pair.py .checkpoints/tiny
"""

import argparse
import hashlib
from pathlib import Path
from typing import Any

import make_bench_pair
import torch
from make_bench_pair import SPECIAL, make_processor, save
from transformers import PreTrainedModel, Qwen3VLConfig, Qwen3VLForConditionalGeneration

CORPUS = [
    "Without thinking, directly answer the question using a single word or phrase in the format: [[answer]]",
    "Please think step by step, provide a detailed explanation, then answer with the option's letter.",
    "According to previous thinking: the image shows a dog. Is there a dog in the image? Yes. No. A. B. C. D.",
    "How many bars are shown in the chart? What is the value in 2019? 0 1 2 3 4 5 6 7 8 9 %",
]


def make_tokenizer(folder: Path) -> Any:
    """Return a byte-level BPE tokenizer, which has tokens for every string, with Qwen's special tokens."""
    return make_bench_pair.make_tokenizer(folder, CORPUS, 512, 4096)


def draw_larger_weights(model: PreTrainedModel) -> None:
    """Draw all matrices again with a larger standard deviation. With the default initialisation, greedy output would
    ignore image and prompt."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2:
                weight.normal_(0.0, 1.0 if "embed" in name else 0.25)


def make_checkpoint(
    folder: Path, *, hidden: int, layers: int, seed: int, intermediate: int | None = None, context: int = 4096
) -> None:
    """Write one checkpoint of about a million parameters into `folder`, or a larger one."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(folder)
    tokenizer.model_max_length = context
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    # An image has 36 to 64 tokens, so every prompt fills a block of 32 tokens, the smallest unit of a prefix cache.
    processor = make_processor(tokenizer, 192 * 192, 256 * 256)
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": hidden,
            "intermediate_size": intermediate or 2 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": hidden // 32,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "max_position_embeddings": context,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
            },
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
            "bos_token_id": None,
        },
        vision_config={
            "depth": 3,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "patch_size": 16,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "out_hidden_size": hidden,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1, 2],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = Qwen3VLForConditionalGeneration(config).eval()
    draw_larger_weights(model)
    model.generation_config.update(
        eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]], pad_token_id=ids["<|endoftext|>"], do_sample=False
    )
    save(folder, model, processor)


def make_pair(folder: Path) -> tuple[Path, Path]:
    """Write `folder`/small and `folder`/large, unless this version of the script wrote them. Returns both paths."""
    small, large = folder / "small", folder / "large"
    sources = Path(__file__).read_bytes() + Path(make_bench_pair.__file__).read_bytes()
    recipe = hashlib.sha256(sources).hexdigest()
    stamp = folder / "recipe"
    if not stamp.exists() or stamp.read_text() != recipe:
        make_checkpoint(small, hidden=64, layers=3, seed=2)
        make_checkpoint(large, hidden=96, layers=4, seed=8)
        stamp.write_text(recipe)
    return small, large


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for path in make_pair(parser.parse_args().folder):
        print(path)
