"""What a profile measures: sizes, lengths and repeats."""

from dataclasses import dataclass, replace

Size = tuple[int, int]
"""Width and height of the image in pixels, and the other tokens of the prompt."""


@dataclass(frozen=True)
class Plan:
    """The cells of all tables. Cells that do not fit the context of the model are left out."""

    images: tuple[int, ...]
    """Tables 1 and 2."""
    ttft: tuple[Size, ...]
    """Table 3."""
    decoding: tuple[Size, ...]
    """Table 4, with each number of `output_tokens`."""
    output_tokens: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    batches: tuple[Size, ...]
    batch_output_tokens: int
    repeats: int
    """Measurements of each cell of Tables 1 to 3."""
    slow_repeats: int
    """Measurements of each cell of Table 4 and of each batch, which take longer."""
    warm_up: int = 1
    """Measurements of each cell before them that do not count."""

    def repeated(self, repeats: int) -> "Plan":
        """Return the plan with another number of measurements of each cell."""
        return replace(self, repeats=repeats, slow_repeats=repeats)


FULL = Plan(
    images=(256, 512, 1024, 2048, 4096),
    ttft=tuple((image, text) for image in (256, 512, 1024) for text in (64, 256, 512, 1024, 2048, 4096, 7168)),
    decoding=((256, 64), (256, 256), (512, 64), (512, 256)),
    output_tokens=(8, 128, 256, 512),
    batch_sizes=(1, 8, 32, 128),
    batches=((512, 64), (512, 512)),
    batch_output_tokens=128,
    repeats=20,
    slow_repeats=5,
    warm_up=3,
)
"""The cells of the paper, longer prompts (the paper profiled up to 8,192 tokens), and batches."""

QUICK = Plan(
    images=(64, 128, 256, 512),
    ttft=tuple((image, text) for image in (64, 256, 512) for text in (48, 128, 512, 1024)),
    decoding=((64, 64), (256, 64), (256, 512)),
    output_tokens=(4, 16, 64),
    batch_sizes=(1, 8, 32, 128),
    batches=((256, 64), (512, 64)),
    batch_output_tokens=16,
    repeats=3,
    slow_repeats=3,
)
"""Some minutes on a CPU with the demo pair."""
