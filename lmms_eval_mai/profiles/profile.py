"""The measured times of one model on one device (Section 3.2): those of Tables 1 to 4, and of batches, which the paper
lacks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Seconds:
    """The duration of one measurement, over its repeats."""

    mean: float
    median: float | None = None
    """This and the next fields are None if only the mean is known, as in the paper."""
    deviation: float | None = None
    """Standard deviation. None also for a single repeat."""
    least: float | None = None
    greatest: float | None = None
    repeats: int | None = None

    @property
    def typical(self) -> float:
        """The median, or the mean if only the mean is known."""
        return self.mean if self.median is None else self.median


@dataclass(frozen=True, slots=True)
class ImagePoint:
    """The preprocessing (Table 1) or the vision encoder (Table 2) with one image."""

    image: int
    """Width and height in pixels."""
    image_tokens: int
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class TtftPoint:
    """A whole request with one output token (Table 3)."""

    image: int
    image_tokens: int
    text_tokens: int
    """All other tokens of the prompt."""
    seconds: Seconds

    @property
    def tokens(self) -> int:
        """The length of the prompt."""
        return self.image_tokens + self.text_tokens


@dataclass(frozen=True, slots=True)
class DecodingPoint:
    """A whole request with a forced number of output tokens (Table 4)."""

    image: int
    image_tokens: int
    text_tokens: int
    output_tokens: int
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """Several requests at once. The paper has no such measurement."""

    batch_size: int
    image: int
    image_tokens: int
    text_tokens: int
    output_tokens: int
    first_token: Seconds
    """From the first request to the end of all requests, if each has one output token."""
    seconds: Seconds
    """The same with `output_tokens` output tokens for each request."""


@dataclass(frozen=True)
class Profile:
    """All measurements of one model."""

    name: str
    """Short name, for tables: the last part of the model's name or path. The paper's profiles have its names."""
    model: str
    """Name or path of the checkpoint."""
    device: str
    engine: str = ""
    """Kind of engine. Empty: not known, as in the paper."""
    dtype: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """How it was measured: arguments of the engine, repeats, warm-up, date."""
    source: str = ""
    """The file, or the place in the paper."""
    preprocessing: tuple[ImagePoint, ...] = ()
    vision: tuple[ImagePoint, ...] = ()
    ttft: tuple[TtftPoint, ...] = ()
    decoding: tuple[DecodingPoint, ...] = ()
    batches: tuple[BatchPoint, ...] = ()

    def tokens_per_s(self) -> float:
        """Return "Avg Tok/s" of Table 4: the mean of output tokens / seconds over its cells."""
        return sum(one.output_tokens / one.seconds.typical for one in self.decoding) / len(self.decoding)
