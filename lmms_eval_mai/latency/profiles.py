"""The measured times of one model on one device (Section 3.2), and the file that holds them.

A `Profile` has the measurements of Tables 1 to 4, and of batches, which the paper lacks. The file
`profile-<model>-<device>.json` is the same as JSON.
"""

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmms_eval_mai.errors import ArgumentError

FORMAT = 1
"""The number of the file's format."""


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


def file_name(model: str, device: str) -> str:
    """Return the name of a profile's file."""

    def plain(text: str) -> str:
        return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")

    return f"profile-{plain(model)}-{plain(device)}.json"


def write(profile: Profile, folder: Path) -> Path:
    """Write the file of a profile into a folder, which is made if it does not exist. Raises `ArgumentError`."""
    path = folder / file_name(profile.name, profile.device)
    record = {"format": FORMAT, **dataclasses.asdict(dataclasses.replace(profile, source=""))}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, ensure_ascii=False, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"The profile {path} cannot be written ({error.strerror}).") from None
    return path


def read(path: Path) -> Profile:
    """Read a profile. Raises `ArgumentError` if the file is not one."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"The profile {path} cannot be read ({error.strerror}).") from None
    except ValueError:
        raise ArgumentError(f"The profile {path} cannot be read, because it is not JSON.") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ArgumentError(
            f"{path} is not a profile of this version. Make one with lmms-eval-mai profile --model MODEL."
        )
    try:
        found = Profile(
            **{name: _text(record[name]) for name in ("name", "model", "device", "engine", "dtype")},
            versions=dict(record["versions"]),
            settings=dict(record["settings"]),
            source=str(path),
            preprocessing=_points(record, "preprocessing", ImagePoint),
            vision=_points(record, "vision", ImagePoint),
            ttft=_points(record, "ttft", TtftPoint),
            decoding=_points(record, "decoding", DecodingPoint),
            batches=_points(record, "batches", BatchPoint),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ArgumentError(f"The profile {path} is broken ({type(error).__name__}: {error}).") from None
    if not found.ttft or not found.decoding:
        raise ArgumentError(f"The profile {path} has no times to the first token, or no times of decoding.")
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _points(record: dict[str, Any], name: str, kind: type[Any]) -> tuple[Any, ...]:
    return tuple(kind(**{field: _value(field, value) for field, value in one.items()}) for one in record[name])


def _value(field: str, value: Any) -> Any:
    """Return a field of a point: `Seconds`, or a whole number. The times are divided by the sizes of batches and by the
    output tokens, so these are not 0."""
    if isinstance(value, dict):
        found = Seconds(**value)
        if not 0 < found.typical < math.inf:
            raise ValueError(value)
        return found
    if not isinstance(value, int) or value < (field in ("batch_size", "output_tokens")):
        raise ValueError(f"{field}: {value}")
    return value
