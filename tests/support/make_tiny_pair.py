"""Two tiny random Qwen3-VL checkpoints for the tests of the code around the models.

They have the genuine architecture. The weights are random, so the answers are deterministic nonsense.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from experiments.demo_pair import qwen3vl

CORPUS = [
    *qwen3vl.SENTENCES,
    "How many bars are shown in the chart? What is the value in 2019? 0 1 2 3 4 5 6 7 8 9 %",
]
VISION = {
    "depth": 3,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 2,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0, 1, 2],
}


def text_sizes(hidden: int, layers: int) -> dict[str, Any]:
    """Return the sizes of a tiny Qwen3 text model."""
    return {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 32,
        "num_key_value_heads": 1,
    }


def make_checkpoint(folder: Path, hidden: int, layers: int, seed: int) -> None:
    """Write one checkpoint of about a million parameters into `folder`."""
    tokenizer = qwen3vl.make_tokenizer(folder, CORPUS, 512, 4096)
    torch.manual_seed(seed)
    model = qwen3vl.make_model(tokenizer, text_sizes(hidden, layers), VISION).eval()
    qwen3vl.draw_larger_weights(model)
    # An image has 36 to 64 tokens, so every prompt fills a block of 32 tokens, the smallest unit of a prefix cache.
    qwen3vl.save(folder, model, qwen3vl.make_processor(tokenizer, 192 * 192, 256 * 256))


def made_once(folder: Path, *sources: str) -> Iterator[None]:
    """Yield once if this version of the code has not written the folder yet. `sources`: files of the code."""
    text = b"".join(Path(one).read_bytes() for one in (__file__, qwen3vl.__file__, *sources))
    recipe, stamp = hashlib.sha256(text).hexdigest(), folder / "recipe"
    if not stamp.exists() or stamp.read_text() != recipe:
        yield
        stamp.write_text(recipe)


def make_pair(folder: Path) -> tuple[Path, Path]:
    """Write `folder`/small and `folder`/large, unless this version of the code wrote them. Returns both paths."""
    small, large = folder / "small", folder / "large"
    for _ in made_once(folder):
        make_checkpoint(small, hidden=64, layers=3, seed=2)
        make_checkpoint(large, hidden=96, layers=4, seed=8)
    return small, large
