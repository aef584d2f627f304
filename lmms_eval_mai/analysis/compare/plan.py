"""The runs of the chosen methods, in their order, and the lmms-eval command that is equivalent to a run."""

import contextlib
import functools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lmms_eval_mai.analysis.compare.table_runs import ALONE, BASELINES, WITH_THRESHOLD, methods_on_tasks
from lmms_eval_mai.contract import SIDES, CallPrompt, EngineConfig
from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.engines.vllm.configuration import PERFORMANCE_ARGUMENTS
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.benchmarks import BENCHMARKS
from lmms_eval_mai.method.methods import MAI, METHODS, Method
from lmms_eval_mai.plugin import MODEL_ID, RESULTS
from lmms_eval_mai.redaction import redacted
from lmms_eval_mai.run import calibration
from lmms_eval_mai.run.config import USABLE_IF, Config, parse, transfers

NO_EFFECT = Config.without_effect() | PERFORMANCE_ARGUMENTS
"""Model arguments of the run and of vLLM that change no answer."""


@dataclass(frozen=True)
class Models:
    """The two models of some runs."""

    name: str
    """Name of the pair, and of its folder."""
    tables: tuple[int, ...]
    """The paper's tables that need runs of these models. Empty: none do."""
    arguments: Mapping[str, Any]
    """The model arguments of the runs that use both models, without `method`."""
    config: Config
    """The configuration of MAI."""
    given_methods: tuple[Method, ...] = ()
    """Those that the user has named."""

    @property
    def more(self) -> list[Method]:
        """The methods for which there is a threshold, and those that the user has named."""
        given = self.arguments.get("min_confidence", self.config.min_confidence)
        names = calibration.read(given).methods if isinstance(given, str) else () if given is None else METHODS
        known = [method for method in WITH_THRESHOLD if method.name in names]
        return [*(known if 10 in self.tables or not self.tables else ()), *self.given_methods]

    def arguments_of(self, method: Method) -> dict[str, Any]:
        """Return the model arguments of a run, without those that its method cannot use. A model alone never thinks by
        itself, because its rows in the tables are S, E and R."""
        changes: dict[str, Any] = {} if transfers(method) else {"transfer": "full"}
        if method in ALONE.values():
            changes["think"] = "R"
        config = self.config.model_copy(update={**changes, "method": method})
        unused = {name for names, usable, needs in USABLE_IF if needs and not usable(config) for name in names}
        used = {name: value for name, value in self.arguments.items() if name not in unused}
        changes = {name: value for name, value in changes.items() if value != getattr(self.config, name)}
        return {**used, **changes, "method": method}


@dataclass(frozen=True)
class PlannedRun:
    """One task with one method, with its own output folder."""

    models: Models
    method: Method
    task: str

    @property
    def name(self) -> str:
        """Also the folder of the run inside the output folder."""
        return str(Path(self.models.name, self.method.name, self.task))


@dataclass(frozen=True)
class Options:
    """The options of lmms-eval that all runs have, as the user gave them."""

    gen_kwargs: str = ""
    limit: int | None = None
    include_path: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """The YAML file of each method of the user."""
    shares_calls: bool = True
    """Whether runs use the calls of others. If not, their seconds count."""

    def command(self, run: PlannedRun, folder: Path, shown: bool = False) -> list[str]:
        """Return the arguments of the equivalent lmms-eval command. `shown`: without secrets, for people."""
        given = self._model_args(run)
        arguments = ["--model", MODEL_ID, "--model_args", _text(redacted(given) if shown else given)]
        for name, value in {**self._others(run), "output_path": folder}.items():
            if value:
                arguments += [f"--{name}", str(value)]
        return [*arguments, "--log_samples"]

    def is_finished(self, run: PlannedRun, folder: Path) -> bool:
        """Return whether lmms-eval's results file of the same arguments is in the folder. Those of `NO_EFFECT` may
        differ if calls are shared; if not, the run must have made its own calls. The file must be newer than the files
        that the arguments name: a pair, a method, thresholds, the user's tasks."""
        given, others = self._model_args(run), self._others(run)
        files = [Path(str(value)) for value in given.values() if os.path.isfile(str(value))]
        least_s = max(map(os.path.getmtime, [*files, *self._task_files]), default=0)
        for file in folder.rglob(f"*{RESULTS}"):
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # another file, or a broken one
                found = json.loads(file.read_text(encoding="utf-8"))["config"]["resolved_cli_args"]
                if (
                    {name: found[name] for name in others} == others
                    and self._compared(found["model_args"]) == self._compared(_text(given))
                    and file.stat().st_mtime >= least_s
                    and (self.shares_calls or not _has_shared_calls(file))
                ):
                    return True
        return False

    @functools.cached_property
    def _task_files(self) -> list[Path]:
        found = Path(self.include_path).rglob("*") if self.include_path else ()
        return [path for path in found if path.suffix in (".yaml", ".py")]

    def _model_args(self, run: PlannedRun) -> dict[str, Any]:
        return run.models.arguments_of(run.method) | {"method": self.files.get(run.method.name, run.method.name)}

    def _compared(self, model_args: str) -> dict[str, Any]:
        """Return the model arguments that must be equal, without secrets, which lmms-eval hides in its files."""
        from lmms_eval.utils import simple_parse_args_string  # takes seconds

        given = redacted(simple_parse_args_string(model_args))
        if not self.shares_calls:
            return given
        return {name: value for name, value in given.items() if re.sub("^(small|large)_", "", name) not in NO_EFFECT}

    def _others(self, run: PlannedRun) -> dict[str, Any]:
        """Return the options of the equivalent command that can change an answer, besides the model arguments."""
        names = ("gen_kwargs", "limit", "include_path")
        return {"tasks": run.task, **{name: getattr(self, name) for name in names}}


def _text(model_args: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in model_args.items())


def _has_shared_calls(results: Path) -> bool:
    """Return whether the samples file beside a results file has a call that another run made."""
    for samples in results.parent.glob(results.name.replace(RESULTS, "_samples_*.jsonl")):
        with samples.open("rb") as lines:
            if any(b'"shared": true' in line for line in lines):
                return True
    return False


def read_models(
    pairs: Mapping[str, tuple[int, ...]], given: Mapping[str, Any], given_methods: Sequence[Method] = ()
) -> list[Models]:
    """Return the models of each pair. `pairs`: pair -> its tables; the pair "" is that of the model arguments `given`.
    Raises `ArgumentError`."""
    found = []
    for pair, tables in pairs.items():
        if pair and (twice := [name for name in ("pair", *SIDES) if name in given]):
            raise ArgumentError(f"The pair {pair} and {twice[0]} in --model_args contradict each other.")
        arguments = {"pair": pair, **given} if pair else dict(given)
        name = Path(str(arguments["pair"])).stem if "pair" in arguments else "models"
        mai_arguments = {key: value for key, value in arguments.items() if key != "min_confidence"}
        models = Models(name, tables, arguments, parse({**mai_arguments, "method": MAI}), tuple(given_methods))
        for method in (*BASELINES, *models.more):
            parse(models.arguments_of(method))
        found.append(models)
    for what, named in (("pairs", found), ("methods", [*dict.fromkeys(given_methods)])):
        if len({one.name for one in named}) < len(named):
            raise ArgumentError(f"--{what}: two of {', '.join(one.name for one in named)} have the same name.")
    return found


def plan(models: Iterable[Models], tasks: Sequence[str], benchmarks: Sequence[str] = ()) -> list[PlannedRun]:
    """Return the runs of each pair: all methods on each task, and what its tables need of each benchmark. A model of
    two pairs runs alone once. Raises `ArgumentError` if a benchmark is unknown, or if there are no runs."""
    for name in benchmarks:
        if name not in BENCHMARKS:
            hint = did_you_mean(name, BENCHMARKS)
            raise ArgumentError(f"--benchmarks {name} is unknown: choose from {', '.join(BENCHMARKS)}.{hint}")
    planned: list[PlannedRun] = []
    alone: list[tuple[EngineConfig, CallPrompt, str, str]] = []
    for run in (run for pair in models for run in _runs_of(pair, tasks, benchmarks)):
        if len(run.method.asks) == 1:
            (ask,) = run.method.asks
            engine: EngineConfig = getattr(run.models.config, ask.side)
            options = run.models.config.model_copy(update={"method": run.method}).settings.options
            call = replace(engine, side="small", attention=False, native=False), ask.prompt, run.task, repr(options)
            if call in alone:
                continue
            alone.append(call)
        planned.append(run)
    if not planned:
        names = ", ".join(benchmarks)
        raise ArgumentError(f"Nothing to run: the tables of --tables have no runs on {names}. Choose other tables.")
    return planned


def _runs_of(pair: Models, tasks: Sequence[str], benchmarks: Sequence[str]) -> Iterator[PlannedRun]:
    for task in tasks:
        yield from (PlannedRun(pair, method, task) for method in dict.fromkeys((*BASELINES, *pair.more)))
    for benchmark in benchmarks:
        for method, suffix in methods_on_tasks(pair.tables, benchmark, pair.more):
            yield PlannedRun(pair, method, f"{benchmark}_{suffix}")
