"""The measured times of one model on one device (Section 3.2) as tidy rows, and their file.

A row is a cell of Tables 1 to 4, or a batch, which the paper lacks. The file `profile-MODEL-DEVICE.json` has one list
of cells for each kind of row.
"""

import functools
import json
import math
import re
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reports import paper_numbers

FORMAT = 1
"""The number of the file's format."""
FACTS = ("name", "model", "device", "engine", "dtype", "versions", "settings")
"""The fields of a profile that its file has beside the rows."""
IMAGE = ("image", "image_tokens")
SIZES = {
    "preprocessing": IMAGE,
    "vision": IMAGE,
    "ttft": (*IMAGE, "text_tokens"),
    "decoding": (*IMAGE, "text_tokens", "output_tokens"),
    "batches": ("batch_size", *IMAGE, "text_tokens", "output_tokens"),
}
"""Kind of row -> its sizes. preprocessing and vision: one image (Tables 1 and 2). ttft: a whole request with one output
token (Table 3). decoding: a whole request with a forced number of output tokens (Table 4). batches: several requests at
once, from the first request to the end of all; two rows for each cell, the first with one output token for each
request."""
SECONDS = ("mean", "median", "deviation", "least", "greatest", "repeats")
"""The summary of repeated measurements. In the paper, only the mean and the repeats are known."""
COLUMNS = ("kind", *SIZES["batches"], *SECONDS, "seconds")
"""`image`: width and height in pixels. `text_tokens`: all other tokens of the prompt. `seconds`: the median, or the
mean if only the mean is known."""
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Profile:
    """All measurements of one model."""

    name: str
    """Short name, for tables: the last part of the model's name or path. The paper's profiles have its names."""
    model: str
    """Name or path of the checkpoint."""
    device: str
    rows: pd.DataFrame
    """The measurements, with `COLUMNS`."""
    engine: str = ""
    """Kind of engine. Empty: not known, as in the paper."""
    dtype: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """How it was measured: arguments of the engine, repeats, warm-up, date."""
    source: str = ""
    """The file, or the place in the paper."""

    def of(self, kind: str) -> pd.DataFrame:
        return self.rows[self.rows["kind"] == kind]

    def tokens_per_s(self) -> float:
        """Return "Avg Tok/s" of Table 4: the mean of output tokens / seconds over its cells."""
        cells = self.of("decoding")
        return float((cells["output_tokens"] / cells["seconds"]).mean())

    def batch_sizes(self) -> set[int]:
        return set(self.of("batches")["batch_size"])


def row(kind: str, seconds: Mapping[str, Any], **sizes: int) -> Row:
    """Return one row. `seconds`: from `summary`, or at least the mean."""
    typical = seconds["mean"] if seconds.get("median") is None else seconds["median"]
    return {"kind": kind, "batch_size": 1, "text_tokens": 0, "output_tokens": 1, **sizes, **seconds, "seconds": typical}


def summary(found: Sequence[float]) -> dict[str, Any]:
    """Return mean, median and spread of repeated measurements."""
    deviation = statistics.stdev(found) if len(found) > 1 else None
    values = (statistics.fmean(found), statistics.median(found), deviation, min(found), max(found), len(found))
    return dict(zip(SECONDS, values, strict=True))


def table(rows: Iterable[Row]) -> pd.DataFrame:
    found = pd.DataFrame(list(rows), columns=list(COLUMNS))
    return found.astype(dict.fromkeys((*SECONDS, "seconds"), float))


# --- the paper's profiles ---

PAPER_DEVICE = "NVIDIA H100 (paper)"
PAPER_NOTE = (
    "The paper's 8B model takes 20.5 ms for a token, as its 4B model does; an H100 reads the weights of an 8B model in "
    "about 5 ms. So these times look like those of transformers, and ratios computed with them do not hold for vLLM."
)
"""A note of tables that are computed with the paper's times."""


@functools.cache
def of_paper() -> tuple[Profile, ...]:
    """Return the paper's profiles: Tables 1 to 4, Qwen3-VL 2B, 4B and 8B on one H100. They have means of 100
    measurements only, and no batches."""
    models = {model: name for model, (family, name) in paper_numbers.load()["models"].items() if family == "Qwen3-VL"}
    source, settings = "Tables 1 to 4 (Section 3.2)", {"repeats": 100}
    return tuple(
        Profile(name, model, PAPER_DEVICE, table(_rows_of_paper(name)), source=source, settings=settings)
        for model, name in models.items()
    )


def _rows_of_paper(name: str) -> Iterator[Row]:
    def seconds(ms: float) -> dict[str, float]:
        return {"mean": ms / 1000, "repeats": 100}

    for number, kind in ((1, "preprocessing"), (2, "vision")):
        images = paper_numbers.table(number)
        for column, ms in zip(images["columns"], images["rows"][name], strict=True):
            side = int(column.partition("x")[0])  # Qwen3-VL has one token for 32 x 32 pixels
            yield row(kind, seconds(ms), image=side, image_tokens=(side // 32) ** 2)
    third, fourth = paper_numbers.table(3), paper_numbers.table(4)
    for cell, ms in zip(third["columns"], third["rows"][name], strict=True):
        image = {size: cell[size] for size in IMAGE}
        yield row("ttft", seconds(ms), **image, text_tokens=cell["query_tokens"])
    for cell, times in zip(fourth["columns"], fourth["rows"][name]["ms"], strict=True):
        sizes = {size: cell[size] for size in IMAGE} | {"text_tokens": cell["tokens"] - cell["image_tokens"]}
        for output_tokens, ms in zip(fourth["output_tokens"], times, strict=True):
            yield row("decoding", seconds(ms), **sizes, output_tokens=output_tokens)


# --- the file ---


def make_folder(folder: Path) -> None:
    """Make a folder for profiles before they are measured, if it does not exist. Raises `ArgumentError` if no file can
    be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ArgumentError(
            f"No profile can be written to {folder} ({error.strerror}). Give another --output_path."
        ) from None


def write(profile: Profile, folder: Path) -> Path:
    """Write the file of a profile into a folder. Raises `ArgumentError`."""
    model, device = (re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-") for text in (profile.name, profile.device))
    path = folder / f"profile-{model}-{device}.json"
    record = {"format": FORMAT, **{name: getattr(profile, name) for name in FACTS}}
    record |= {kind: list(_cells(profile, kind)) for kind in SIZES}
    try:
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
        rows = table(one for kind in SIZES for cell in record[kind] for one in _rows(kind, **cell))
        return Profile(**{name: record[name] for name in FACTS}, source=str(path), rows=rows)
    except (LookupError, TypeError) as error:
        raise ArgumentError(f"The profile {path} is broken ({type(error).__name__}: {error}).") from None


def _cells(profile: Profile, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the cells of the file. A batch has both of its rows in one cell."""
    cells: list[Row] = profile.of(kind).to_dict("records")
    firsts = cells[::2] if kind == "batches" else [None] * len(cells)
    for cell, first in zip(cells[1::2] if kind == "batches" else cells, firsts, strict=True):
        sizes = {name: int(cell[name]) for name in SIZES[kind]}
        yield {**sizes, **({"first_token": _seconds(first)} if first else {}), "seconds": _seconds(cell)}


def _seconds(cell: Row) -> dict[str, Any]:
    found = {name: None if math.isnan(cell[name]) else cell[name] for name in SECONDS}
    return found | {"repeats": None if found["repeats"] is None else int(found["repeats"])}


def _rows(kind: str, seconds: Row, first_token: Row | None = None, **sizes: int) -> Iterator[Row]:
    if first_token is not None:
        yield row(kind, first_token, **{**sizes, "output_tokens": 1})
    yield row(kind, seconds, **sizes)
