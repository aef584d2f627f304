"""The runs that the chosen tables need, in their order, and the lmms-eval command that is equivalent to a run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lmms_eval_mai.analysis.reproduce.methods import ALONE, WITH_THRESHOLD, Kind, kinds_of
from lmms_eval_mai.contract import SIDES, EngineConfig
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.methods import FULL_RT, MAI, METHODS, Method
from lmms_eval_mai.plugin import MODEL_ID
from lmms_eval_mai.redaction import redacted
from lmms_eval_mai.run import calibration
from lmms_eval_mai.run.config import NEEDED, Config, parse, transfers


@dataclass(frozen=True)
class Models:
    """The two models of some runs."""

    name: str
    """Name of the pair, and of its folder."""
    tables: tuple[int, ...]
    """The tables that need runs of these models."""
    arguments: Mapping[str, Any]
    """The model arguments of the runs that use both models, without `method`."""
    config: Config
    """The configuration of MAI."""
    own: tuple[Method, ...] = ()
    """Methods of the user."""

    @property
    def more(self) -> list[Method]:
        """The methods that the paper does not have: those for which there is a threshold, and the user's."""
        given = self.arguments.get("min_confidence", self.config.min_confidence)
        names = calibration.read(given).methods if isinstance(given, str) else () if given is None else METHODS
        known = [method for method in WITH_THRESHOLD if method.name in names]
        return [*(known if 10 in self.tables else ()), *self.own]

    def arguments_of(self, method: Method) -> dict[str, Any]:
        """Return the model arguments of a run, without those that its method cannot use. A model alone never thinks by
        itself, because its rows in the tables are S, E and R."""
        changes: dict[str, Any] = {} if transfers(method) else {"transfer": "full"}
        if method in ALONE.values():
            changes["think"] = "R"
        config = self.config.model_copy(update={**changes, "method": method})
        unused = {name for names, is_met, _ in NEEDED if not is_met(config) for name in names}
        used = {name: value for name, value in self.arguments.items() if name not in unused}
        changes = {name: value for name, value in changes.items() if value != getattr(self.config, name)}
        return {**used, **changes, "method": method}


@dataclass(frozen=True)
class Run:
    """One run: one task with one method, with its own output folder."""

    models: Models
    kind: Kind
    benchmark: str

    @property
    def task(self) -> str:
        return f"{self.benchmark}_{self.kind.suffix}"

    @property
    def name(self) -> str:
        """Return the folder of the run inside the output folder."""
        return str(Path(self.models.name, self.kind.method.name, self.task))


@dataclass(frozen=True)
class Options:
    """The options of lmms-eval that all runs have, as the user gave them."""

    gen_kwargs: str = ""
    limit: int | None = None
    include_path: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """The YAML file of each method of the user."""

    def command(self, run: Run, output: Path, shown: bool = False) -> list[str]:
        """Return the arguments of the equivalent lmms-eval command. `shown`: without secrets, for people."""
        given = run.models.arguments_of(run.kind.method)
        given["method"] = self.files.get(run.kind.method.name, run.kind.method.name)
        given = redacted(given) if shown else given
        model_args = ",".join(f"{name}={value}" for name, value in given.items())
        arguments = ["--model", MODEL_ID, "--model_args", model_args, "--tasks", run.task]
        for name in ("gen_kwargs", "limit", "include_path"):
            if value := getattr(self, name):
                arguments += [f"--{name}", str(value)]
        return [*arguments, "--output_path", str(output), "--log_samples"]


def read_models(
    pairs: Mapping[str, tuple[int, ...]], given: Mapping[str, Any], own: Sequence[Method] = ()
) -> list[Models]:
    """Return the models of each pair. `pairs`: pair -> its tables; the pair "" is that of the model arguments `given`.
    `own`: methods of the user. Raises `ArgumentError`."""
    of_pairs = []
    for pair, tables in pairs.items():
        if pair and (twice := [name for name in ("pair", *SIDES) if name in given]):
            raise ArgumentError(f"The pair {pair} and {twice[0]} in --model_args contradict each other.")
        arguments = {"pair": pair, **given} if pair else dict(given)
        name = Path(str(arguments["pair"])).stem if "pair" in arguments else "models"
        of_mai = {key: value for key, value in arguments.items() if key != "min_confidence"}
        models = Models(name, tables, arguments, parse({**of_mai, "method": MAI}), tuple(own))
        for method in (*ALONE.values(), FULL_RT, MAI, *models.more):
            parse(models.arguments_of(method))
        of_pairs.append(models)
    for what, named in (("pairs", of_pairs), ("methods", [*dict.fromkeys(own)])):
        if len({one.name for one in named}) < len(named):
            raise ArgumentError(f"--{what}: two of {', '.join(one.name for one in named)} have the same name.")
    return of_pairs


def runs(models: Iterable[Models], benchmarks: Sequence[str]) -> list[Run]:
    """Return the runs that the tables of each pair need. A model of two pairs runs alone once. Raises `ArgumentError`
    if there are no runs."""
    planned: list[Run] = []
    alone: list[tuple[EngineConfig, str]] = []
    for pair in models:
        for benchmark in benchmarks:
            for kind in kinds_of(pair.tables, benchmark, pair.more):
                run = Run(pair, kind, benchmark)
                if kind.method in ALONE.values():
                    engine: EngineConfig = getattr(pair.config, kind.method.name)
                    model = replace(engine, side="small", attention=False, native=False), run.task
                    if model in alone:
                        continue
                    alone.append(model)
                planned.append(run)
    if not planned:
        names = ", ".join(benchmarks)
        raise ArgumentError(f"Nothing to run: the tables of --tables have no runs on {names}. Choose other tables.")
    return planned
