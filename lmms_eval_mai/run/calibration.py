"""The file that `lmms-eval-mai calibrate` writes and `min_confidence=FILE` reads: the thresholds of some methods."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from pydantic import TypeAdapter

from lmms_eval_mai.contract import Side
from lmms_eval_mai.engines.arguments import Share
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.files import read_steps
from lmms_eval_mai.method.methods import NEVER, Method, Thresholds, steps_of
from lmms_eval_mai.user_input import path_of

FORMAT = 2


@dataclass(frozen=True)
class Calibrated:
    """The thresholds of one method, and the documents that chose them."""

    method: Method
    benchmarks: Mapping[str, Share]
    """Benchmark -> its threshold. Benchmarks without a threshold that keeps the promise are left out."""
    promise: str
    """What the thresholds promise, as a sentence."""
    documents: Mapping[str, int]
    """Benchmark -> the number of documents that were used."""
    think: str = ""
    """The thinking prompt: R, E or native. Empty: not known."""

    @property
    def thresholds(self) -> Thresholds:
        """The threshold of each benchmark. A benchmark that the file does not name gets the only one of the file."""
        # A benchmark whose documents refused every threshold must not get that of another one.
        refused = dict.fromkeys(self.documents, NEVER)
        other = next(iter(self.benchmarks.values())) if len(self.documents) == len(self.benchmarks) == 1 else NEVER
        return Thresholds(other, {**refused, **self.benchmarks})


@dataclass(frozen=True)
class Calibration:
    """The thresholds of one pair of models."""

    methods: Mapping[str, Calibrated]
    """Name of a method -> its thresholds."""
    models: Mapping[Side, str]
    """The models. A method that does not ask the small one needs none."""
    engines: Mapping[Side, str] = field(default_factory=dict)
    """What can change a probability of each model: its engine with version, model runner and precision. Empty: not
    known."""
    images: tuple[str, ...] = ()
    """The hashes of the images of the documents, so that a report can tell a score on the same ones."""

    def doubts(
        self, method: Method, models: Mapping[Side, str], engines: Mapping[Side, str], think: str
    ) -> Iterator[str]:
        """Yield a sentence for each difference between this run and the one that chose the thresholds. Paths of a
        checkpoint differ between machines, and the address of an endpoint names no model."""
        calibrated = self.methods[method.name]
        if calibrated.method.steps != method.steps:
            yield f"it was chosen for other steps of {method.name}"
        if calibrated.think and "native" in (calibrated.think, think) and calibrated.think != think:
            yield f"it was chosen with think={calibrated.think}, not {think}"
        for side in method.sides:
            chosen, here = self.models.get(side, ""), models[side]
            if chosen and "://" not in chosen + here and PurePath(chosen).name != PurePath(here).name:
                yield f"it was chosen with {side}={chosen}, not {here}"
            chosen, here = self.engines.get(side, ""), engines.get(side, "")
            if chosen and here and chosen != here:
                yield f"it was chosen with the {side} model on {chosen}, not {here}, which gives other probabilities"

    def record(self) -> dict[str, Any]:
        methods = {
            name: {**{key: value for key, value in vars(one).items() if key != "method"}, "steps": steps_of(one.method)}
            for name, one in self.methods.items()
        }
        return {**dataclasses.asdict(dataclasses.replace(self, methods={})), "methods": methods, "format": FORMAT}

    def write(self, file: Path) -> None:
        """Raises `OSError`."""
        file.write_text(json.dumps(self.record(), indent=1) + "\n", encoding="utf-8")


def read(file: str) -> Calibration:
    """Read a file of `lmms-eval-mai calibrate`. Raises `ArgumentError`."""
    argument, path = f"min_confidence={file}", path_of(file)
    try:
        record = json.loads(path.read_bytes())
        if record.get("format") != FORMAT:
            raise ArgumentError(
                f"{argument}: its format {record.get('format')} is not known to this version. Calibrate again."
            )
        for name, one in record["methods"].items():
            one["method"] = read_steps(name, one["steps"], f"{argument}, method {name}")
        return TypeAdapter(Calibration).validate_python(record)
    except ArgumentError:
        raise
    except FileNotFoundError as error:
        raise ArgumentError(
            f"{argument} is neither a number above 0 and at most 1 nor a file that exists here. lmms-eval-mai "
            "calibrate writes such a file."
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(
            f"{argument} is invalid: expected a number above 0 and at most 1, or a file that lmms-eval-mai calibrate "
            "has written."
        ) from error
