"""The runs that the chosen tables need, in their order, and their calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmms_eval_mai.contract import Side
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reproduce import tables
from lmms_eval_mai.reproduce.calls import Calls, PlannedCall, calls_of
from lmms_eval_mai.reproduce.methods import Method
from lmms_eval_mai.reproduce.subjects import Subject
from lmms_eval_mai.run.config import Config, parse

SET_HERE = {
    "mode": "the runs have all modes",
    "journal": "the command keeps all finished calls in --output_path",
    "keep": "the engines always stay up between the runs",
}
"""Model arguments that the command sets itself, and why."""


@dataclass(frozen=True)
class Models:
    """The two models of some runs."""

    name: str
    """Name of the pair, and of its folder."""
    arguments: Mapping[str, Any]
    """The model arguments of the runs that use both models, without `mode`."""
    config: Config
    """The configuration of MAI."""

    def of_mode(self, mode: str) -> dict[str, Any]:
        """Return the model arguments of a run."""
        given = self.arguments
        if mode in ("small", "large"):
            # A mode with one model refuses the arguments of the transfer.
            given = {name: value for name, value in given.items() if name != "transfer" and name[:7] != "sparse_"}
        return {**given, "mode": mode}


@dataclass(frozen=True)
class Count:
    """A number of calls, from `least` to `most`: some calls depend on answers."""

    least: int = 0
    most: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.least + other.least, self.most + other.most)

    def __str__(self) -> str:
        return f"{self.least:,}" if self.least == self.most else f"{self.least:,} to {self.most:,}"


@dataclass(frozen=True)
class Run:
    """One run: one task in one mode, with its own output folder."""

    models: Models
    method: Method
    subject: Subject
    calls: Calls
    """Calls for one document that the single lmms-eval command makes."""
    new: Calls
    """Calls for one document that no earlier run of the plan makes."""

    @property
    def needed(self) -> Count:
        """Return the number of calls that the single lmms-eval command makes."""
        return self._count(self.calls)

    @property
    def made(self) -> Count:
        """Return the number of calls that no earlier run of the plan makes."""
        return self._count(self.new)

    @property
    def task(self) -> str:
        return self.subject.task(self.method.suffix)

    @property
    def name(self) -> str:
        """Return the folder of the run inside the output folder."""
        return str(Path(self.models.name, self.method.mode, self.task))

    def arguments(self) -> dict[str, Any]:
        """Return the model arguments."""
        return self.models.of_mode(self.method.mode)

    def _count(self, calls: Calls) -> Count:
        certain, possible = len(calls.certain), len(calls.possible)
        return Count(self.subject.documents * certain, self.subject.documents * (certain + possible))


def read_models(pairs: Sequence[str], given: Mapping[str, Any]) -> list[Models]:
    """Return the models of each pair. No pair: those of the model arguments. Raises `ArgumentError`."""
    for name, reason in SET_HERE.items():
        if name in given:
            raise ArgumentError(f"{name}={given[name]} has no effect here, because {reason}. Leave it out.")
    if pairs and (twice := [name for name in ("pair", "small", "large") if name in given]):
        raise ArgumentError(f"--pairs {','.join(pairs)} and {twice[0]} in --model_args contradict each other.")
    found = []
    for pair in pairs or (None,):
        arguments = dict(given) if pair is None else {"pair": pair, **given}
        name = Path(str(arguments["pair"])).stem if "pair" in arguments else "models"
        models = Models(name, arguments, parse({**arguments, "mode": "cascade"}))
        for mode in ("small", "large", "transfer"):
            parse(models.of_mode(mode))
        found.append(models)
    names = [models.name for models in found]
    if len(set(names)) < len(names):
        raise ArgumentError(f"--pairs {','.join(pairs)}: two pairs have the same name.")
    return found


def runs(models: Sequence[Models], subjects: Sequence[Subject], chosen: Sequence[int]) -> list[Run]:
    """Return the runs that the tables `chosen` need. Raises `ArgumentError` if there are none."""
    found: list[Run] = []
    alone: set[tuple[Any, ...]] = set()
    known: set[tuple[str, PlannedCall]] = set()
    for one in models:
        for subject in subjects:
            for method in tables.methods(chosen, subject.benchmark):
                key = _alone_key(one, method, subject)
                if key is None or key not in alone:
                    found.append(_run(one, method, subject, known))
                if key is not None:
                    alone.add(key)
    if not found:
        shown = ", ".join(map(str, chosen))
        names = ", ".join(subject.name for subject in subjects)
        raise ArgumentError(f"Nothing to run: the paper's Table {shown} has no runs on {names}. Choose other tables.")
    return found


def _run(models: Models, method: Method, subject: Subject, known: set[tuple[str, PlannedCall]]) -> Run:
    """Return a run, and add its calls to the known ones."""
    calls = calls_of(method, models.config)
    shared = set() if subject.samples else {call for name, call in known if name == subject.name}
    new = Calls(
        tuple(call for call in calls.certain if call not in shared),
        tuple(call for call in calls.possible if call not in shared),
    )
    known |= {(subject.name, call) for call in (*calls.certain, *calls.possible)}
    return Run(models, method, subject, calls, new)


def _alone_key(models: Models, method: Method, subject: Subject) -> tuple[Any, ...] | None:
    """Return what a run of one model depends on, so that a model of two pairs runs once. None: a run of both models."""
    if method.mode not in ("small", "large"):
        return None
    side: Side = "small" if method.mode == "small" else "large"
    config = models.config
    engine = replace(config.small if side == "small" else config.large, side="small", attention=False)
    arguments = repr(sorted(engine.arguments.items(), key=lambda item: item[0]))
    decoding = repr((config.decoding, config.official_decoding, config.max_new_tokens))
    return engine.engine, engine.model, arguments, decoding, method.suffix, subject.name
