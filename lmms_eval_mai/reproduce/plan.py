"""The runs that the chosen tables need, in their order, and the lmms-eval command that is equivalent to a run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.confidence import Choices
from lmms_eval_mai.plugin import MODEL_ID
from lmms_eval_mai.redaction import redacted
from lmms_eval_mai.reproduce.methods import Method, methods_of
from lmms_eval_mai.run.config import Config, parse


@dataclass(frozen=True)
class Subject:
    """A benchmark of our tasks."""

    name: str
    documents: int
    """Documents that a run answers."""


@dataclass(frozen=True)
class Models:
    """The two models of some runs."""

    name: str
    """Name of the pair, and of its folder."""
    tables: tuple[int, ...]
    """The tables that need runs of these models."""
    arguments: Mapping[str, Any]
    """The model arguments of the runs that use both models, without `mode` and `verify`."""
    config: Config
    """The configuration of MAI, with its `min_confidence`."""

    @property
    def thinkers(self) -> list[Side]:
        """The thinkers of the cascades with verify=confidence for which there is a threshold."""
        thresholds = {"small": self.config.min_confidence, "large": self.config.own_min_confidence}
        return [side for side in SIDES if thresholds[side] is not None]

    def of(self, method: Method) -> dict[str, Any]:
        """Return the model arguments of a run."""
        given = {**self.arguments, "mode": method.mode}
        is_own = method.choices.thinker == "large"
        if method.choices.verify == "agreement" or is_own:
            given.pop("min_confidence", None)
        if not is_own:
            given.pop("own_min_confidence", None)
        if method.mode == "cascade":
            given["verify"] = method.choices.verify
            own = parse(given).choices.later  # the pair's file may have other choices
            given |= {name: getattr(method.choices, name) for name in {**own, **method.choices.later}}
        if method.mode in SIDES or is_own:  # what transfers nothing refuses the arguments of the transfer
            given = {name: value for name, value in given.items() if name != "transfer" and name[:7] != "sparse_"}
        return given


@dataclass(frozen=True)
class Run:
    """One run: one task in one mode, with its own output folder."""

    models: Models
    method: Method
    subject: Subject

    @property
    def task(self) -> str:
        return f"{self.subject.name}_{self.method.suffix}"

    @property
    def name(self) -> str:
        """Return the folder of the run inside the output folder."""
        return str(Path(self.models.name, self.method.folder, self.task))


@dataclass(frozen=True)
class Options:
    """The options of lmms-eval that all runs have, as the user gave them."""

    gen_kwargs: str = ""
    limit: int | None = None
    include_path: str | None = None

    def command(self, run: Run, output: Path, shown: bool = False) -> list[str]:
        """Return the arguments of the equivalent lmms-eval command. `shown`: without secrets, for people."""
        given = run.models.of(run.method)
        given = redacted(given) if shown else given
        model_args = ",".join(f"{name}={value}" for name, value in given.items())
        arguments = ["--model", MODEL_ID, "--model_args", model_args, "--tasks", run.task]
        for name in ("gen_kwargs", "limit", "include_path"):
            if value := getattr(self, name):
                arguments += [f"--{name}", str(value)]
        return [*arguments, "--output_path", str(output), "--log_samples"]


def read_models(pairs: Mapping[str, tuple[int, ...]], given: Mapping[str, Any]) -> list[Models]:
    """Return the models of each pair. `pairs`: pair -> its tables; the pair "" is that of the model arguments `given`.
    Raises `ArgumentError`."""
    found = []
    for pair, tables in pairs.items():
        if pair and (twice := [name for name in ("pair", *SIDES) if name in given]):
            raise ArgumentError(f"The pair {pair} and {twice[0]} in --model_args contradict each other.")
        arguments = {"pair": pair, **given} if pair else dict(given)
        name = Path(str(arguments["pair"])).stem if "pair" in arguments else "models"
        cascade = {**asdict(Choices("confidence")), "mode": "cascade"}
        models = Models(name, tables, arguments, parse({**arguments, **cascade}))
        for mode in (*SIDES, "transfer", "cascade"):
            parse(models.of(Method(mode, "s")))
        found.append(models)
    if len({models.name for models in found}) < len(found):
        raise ArgumentError(f"--pairs {','.join(pairs)}: two pairs have the same name.")
    return found


def runs(models: Iterable[Models], subjects: Sequence[Subject]) -> list[Run]:
    """Return the runs that the tables of each pair need. A model of two pairs runs alone once. Raises `ArgumentError`
    if there are no runs."""
    found: list[Run] = []
    alone: list[tuple[Any, ...]] = []
    for pair in models:
        for subject in subjects:
            for method in methods_of(pair.tables, subject.name, pair.thinkers):
                if method.mode in SIDES:
                    key = (replace(getattr(pair.config, method.mode), side="small", attention=False), method.suffix)
                    if (*key, subject) in alone:
                        continue
                    alone.append((*key, subject))
                found.append(Run(pair, method, subject))
    if not found:
        names = ", ".join(subject.name for subject in subjects)
        raise ArgumentError(f"Nothing to run: the tables of --tables have no runs on {names}. Choose other tables.")
    return found
