"""The file that `lmms-eval-mai calibrate` writes and `min_confidence=FILE` reads: thresholds, and what chose them."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.confidence import NEVER, Choices, Thresholds

FORMAT = 1


@dataclass(frozen=True)
class Calibration:
    """Thresholds of one pair of models, and the documents that chose them."""

    choices: Choices
    """Those for which the thresholds hold."""
    pooled: float | None
    """The threshold of benchmarks that the file does not name: that of its only one. None: there are several."""
    thresholds: Mapping[str, float]
    """Benchmark -> its threshold. Benchmarks without a threshold that keeps the promise are left out."""
    promise: str
    """What the thresholds promise, as a sentence."""
    small: str
    large: str
    """The models."""
    documents: Mapping[str, int]
    """Benchmark -> the number of documents that were used."""
    images: tuple[str, ...]
    """The hashes of the images of these documents, so that a report can tell a score on the same ones."""
    format: int = FORMAT

    def record(self) -> dict[str, Any]:
        """Return what the file has."""
        record = dataclasses.asdict(self)
        return {**record.pop("choices"), **record}

    def write(self, file: Path) -> None:
        """Write the file. Raises `OSError`."""
        file.write_text(json.dumps(self.record(), indent=1) + "\n", encoding="utf-8")

    @property
    def of_benchmarks(self) -> Thresholds:
        """The threshold of each benchmark."""
        # A benchmark whose documents refused every threshold must not get the pooled one.
        refused = dict.fromkeys(self.documents, NEVER)
        return Thresholds(NEVER if self.pooled is None else self.pooled, {**refused, **self.thresholds})

    def is_of(self, small: str, large: str) -> bool:
        """Return whether the thresholds may be those of these models: paths of a checkpoint differ between machines,
        and the address of an endpoint names no model."""
        has_small = (self.choices.verify, self.choices.thinker) != ("confidence", "large")
        named = ((small, self.small), (large, self.large))[not has_small :]
        return all("://" in one + other or PurePath(one).name == PurePath(other).name for one, other in named)


def read(file: str) -> Calibration:
    """Read a file of `lmms-eval-mai calibrate`. Raises `ArgumentError`."""
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise ArgumentError(
                f"min_confidence={file}: its format {found['format']} is not known to this version. Calibrate again."
            )
        thresholds = [*found["thresholds"].values(), *([] if found["pooled"] is None else [found["pooled"]])]
        if not all(0 < float(one) <= 1 for one in thresholds) or found["verify"] not in ("confidence", "both"):
            raise ValueError(thresholds)
        choices = Choices(found.pop("verify"), found.pop("thinker", "small"), found.pop("second_check", "on"))
        found |= {"documents": dict(found["documents"]), "images": tuple(found["images"])}
        return Calibration(choices, **found)
    except FileNotFoundError as error:
        raise ArgumentError(
            f"min_confidence={file} is neither a number above 0 and at most 1 nor a file that exists here. "
            "lmms-eval-mai calibrate writes such a file."
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(
            f"min_confidence={file} is invalid: expected a number above 0 and at most 1, or a file that lmms-eval-mai "
            "calibrate has written."
        ) from error
