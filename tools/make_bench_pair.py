"""Make two Qwen3-VL checkpoints with random weights, offline, in some seconds: DIR/small, DIR/large and DIR/pair.yaml.

    python tools/make_bench_pair.py .checkpoints/bench
    lmms-eval-mai bench --pair .checkpoints/bench/pair.yaml --lengths paper:chartqa

They are for measurements of time on a CPU, where the real models are too slow. Their answers are noise. They have the
architecture of Qwen3-VL-2B and -8B with narrower layers: the width of the language model and the vocabulary are divided
by 10.67, the width of the vision encoder by 9, and the numbers of layers are kept. So the proportions are almost those
of the real models: parameters (20 and 80 million; 1 : 3.9, really 1 : 4.1), layers, and the shares of the vision
encoder and of the output layer.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))
from experiments.demo_pair.qwen3vl import SENTENCES, SPECIAL, make_model, make_processor, make_tokenizer, save

VOCABULARY = 14_336
CONTEXT = 8192
PIXELS = 256 * 256, 2048 * 2048
"""Images between these sizes are not resized. The real processor's upper limit is 4096 x 4096, beyond the context."""
PRESET = "small: ./small\nlarge: ./large\nmax_new_tokens: 512\n"
"""The file for `pair=`."""


@dataclass(frozen=True)
class Shape:
    """The size of one model."""

    hidden: int
    layers: int
    heads: int
    vision_hidden: int
    vision_intermediate: int
    vision_layers: int
    deepstack: list[int]
    """Layers of the vision encoder whose features go into the language model."""
    tied: bool
    """Whether the output layer is the embedding."""


SHAPES = {
    "small": Shape(192, 28, 6, 112, 448, 24, [5, 11, 17], True),
    "large": Shape(384, 36, 12, 128, 480, 27, [8, 16, 24], False),
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
    tokenizer = make_tokenizer(folder, _texts(), VOCABULARY - len(SPECIAL), CONTEXT)
    text = {
        "hidden_size": shape.hidden,
        "intermediate_size": 3 * shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": 3,
        "tie_word_embeddings": shape.tied,
    }
    vision = {
        "depth": shape.vision_layers,
        "hidden_size": shape.vision_hidden,
        "intermediate_size": shape.vision_intermediate,
        "num_heads": 4,
        "num_position_embeddings": 48 * 48,
        "deepstack_visual_indexes": shape.deepstack,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(shape.layers)
        model = make_model(tokenizer, text, vision, theta=5_000_000.0).eval()
    save(folder, model, make_processor(tokenizer, *PIXELS))


def _texts() -> Iterator[str]:
    """Yield texts of made-up words, so that there are enough tokens for the vocabulary."""
    dice = random.Random(0)
    syllables = [a + b for a in "bcdfghjklmnprstvwz" for b in ("a", "e", "i", "o", "u", "an", "er", "is", "ou")]
    for _ in range(3000):
        yield " ".join("".join(dice.choices(syllables, k=dice.randint(2, 4))) for _ in range(10))
    for sentence in [
        *SENTENCES,
        "How many bars are shown in the chart? What is the value of the bar? 0 1 2 3 4 5 6 7 8 9 %",
    ]:
        yield from [f"{sentence} {sentence.lower()}"] * 500


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    print(make_pair(parser.parse_args().folder))
