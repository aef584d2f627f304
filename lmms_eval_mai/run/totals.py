"""The figures of a run: sums over its calls and samples, as plain data and as the final table.

All reported figures come from here. The rows of all calls are kept until the end, and pandas adds them up.
"""

import importlib.metadata
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.errors import MaiError, SampleError
from lmms_eval_mai.method.methods import steps_of
from lmms_eval_mai.method.trace import Trace
from lmms_eval_mai.redaction import without_password
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.store import SampleKey

RESULTS, FIGURES = "_results.json", "_mai_cascade.json"
"""How the names of lmms-eval's results and of the file of figures beside them end."""
FORMAT = 1
"""Increase this number if a field is renamed, removed or counted in another way."""
COUNTS = ("prompt_tokens", "cached_tokens", "output_tokens", "call_seconds", "answer_tokens")
SPECULATION = ("proposed_tokens", "accepted_tokens", "target_calls")
"""The figures of drafted tokens, of a call and of a run. Those that the engine does not report are left out."""
CALL = ("calls", *COUNTS, *SPECULATION, "shared_calls", "cut_calls")
"""What is counted of a call. A cut call ended at its token limit, or at the end of the context."""
SELECTION = ("scored_tokens", "kept_tokens")
"""What is counted of a transfer whose tokens were selected (`transfer=sparse`)."""
SHOWN_CAUSES = SHOWN_DOCUMENTS = 10


class Failures:
    """The failed samples of a run, by cause. Errors have one cause if they have the same type and their messages differ
    only in numbers, for example in the number of the document."""

    def __init__(self) -> None:
        self.causes: dict[str, list[tuple[str, SampleKey]]] = {}
        """Cause -> the message and the sample of each error."""

    def add(self, sample: SampleKey, error: SampleError) -> bool:
        """Add a failed sample. Returns whether it is the first of its cause."""
        text = f"{type(error).__name__}: {error}"
        of_cause = self.causes.setdefault(re.sub(r"\d+", "0", text), [])
        of_cause.append((text, sample))
        return len(of_cause) == 1

    @property
    def count(self) -> int:
        """The number of failed samples."""
        return sum(map(len, self.causes.values()))

    @property
    def kinds(self) -> dict[str, int]:
        """Kind of error -> number of samples, the largest first."""
        kinds: Counter[str] = Counter()
        for cause, samples in self.causes.items():
            kinds[cause.partition(":")[0]] += len(samples)
        return dict(kinds.most_common())

    def add_to_message(self, error: MaiError) -> None:
        """Add the failed samples, if there are any, to the error that ends the run."""
        if count := self.count:
            error.args = (f"{error}\nBefore this error, {count:,} sample{'s' * (count != 1)} failed:\n{self}\n",)

    def __str__(self) -> str:
        """Return one line per cause: its first error, and the other samples that failed for it."""
        lines = []
        for (text, _), *others in list(self.causes.values())[:SHOWN_CAUSES]:
            names = ", ".join(sample_name(sample) for _, sample in others[:SHOWN_DOCUMENTS])
            more = f" and {len(others) - SHOWN_DOCUMENTS:,} more" if len(others) > SHOWN_DOCUMENTS else ""
            similar = f" {len(others):,} more with a similar message: {names}{more}." if others else ""
            lines.append(f"  {text}{similar}")
        if (more_causes := len(self.causes) - SHOWN_CAUSES) > 0:
            lines.append(f"  ... and {more_causes:,} more causes, named in the log above")
        return "\n".join(lines)


def sample_name(sample: SampleKey) -> str:
    """Return a sample's name for messages, such as `pope_s document 12, repeat 1`."""
    task, document, repeat = sample
    return f"{task} document {document}" + (f", repeat {repeat}" if repeat else "")


@dataclass
class Totals:
    """What was counted so far, of this rank or of all ranks."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    """Task, side and the columns of `CALL`, of each call."""
    samples: list[tuple[Any, ...]] = field(default_factory=list)
    """Task, exit, whether the answer cannot be read, and the columns of `SELECTION`, of each answered sample."""
    failures: Failures = field(default_factory=Failures)
    wall_s: float = 0.0
    """Seconds in which this process ran samples."""
    resumed: bool = False
    """Whether earlier processes made a part of the calls, so that `wall_s` is not the time of all of them."""
    task_wall_s: Counter[str] = field(default_factory=Counter)
    """The seconds that belong to each task (`Progress`)."""
    ranks: int = 1
    """Number of processes (ranks) whose figures these are."""

    def add(self, trace: Trace) -> None:
        """Count an answered sample and its calls."""
        task = trace.answer.key.task
        scored = (0, 0) if trace.selection is None else (trace.selection.scored_tokens, trace.selection.kept_tokens)
        self.samples.append((task, trace.exit, not trace.readable, *scored))
        for call in trace.calls:
            tokens = (call.prompt_tokens, call.cached_tokens, call.output_tokens, call.total_s, call.answer_tokens)
            speculation = (getattr(call, name) for name in SPECULATION)
            cut = call.finish_reason == "length"
            self.calls.append((task, call.key.side, 1, *tokens, *speculation, call.shared, cut))

    def add_seconds(self, task: str, seconds: float) -> None:
        """Add the time between two finished samples to the task of the second one."""
        self.wall_s += seconds
        self.task_wall_s[task] += seconds  # type: ignore[assignment]

    @property
    def tasks(self) -> list[str]:
        """The names of all tasks."""
        failed = (sample[0] for samples in self.failures.causes.values() for _, sample in samples)
        return sorted({*(task for task, *_ in self.samples), *failed})

    @classmethod
    def merged(cls, ranks: Sequence["Totals"]) -> "Totals":
        """Return the figures of a run from those of its ranks. The slowest rank decides each wall time."""
        resumed = any(of.resumed for of in ranks)
        merged = cls(wall_s=max(of.wall_s for of in ranks), resumed=resumed, ranks=len(ranks))
        for of in ranks:
            merged.calls += of.calls
            merged.samples += of.samples
            merged.task_wall_s |= of.task_wall_s  # the larger one of each task
            for cause, samples in of.failures.causes.items():
                merged.failures.causes.setdefault(cause, []).extend(samples)
        return merged


# --- as plain data ---


def figures(totals: Totals, config: Config, descriptions: Mapping[Side, str]) -> dict[str, Any]:
    """Return the figures of a run, ready for JSON. docs/output.md describes the fields. `descriptions`: of the
    engines."""
    tasks = _tasks(totals, config)
    return {
        "format": FORMAT,
        "version": version("lmms-eval-mai"),
        "lmms_eval_version": version("lmms-eval"),
        "method": config.method.name,
        "steps": steps_of(config.method),
        "options": dict(config.settings.options),
        "engines": {
            engine.side: {
                "engine": engine.engine,
                "model": without_password(engine.model),
                "settings": without_password(descriptions.get(engine.side, "")),
            }
            for engine in config.engines()
        },
        "ranks": totals.ranks,
        "wall_s": None if totals.resumed else round(totals.wall_s, 6),
        "samples": len(totals.samples),
        "not_answered": totals.failures.count,
        "errors": totals.failures.kinds,
        "tasks": tasks,
    }


def _tasks(totals: Totals, config: Config) -> dict[str, dict[str, Any]]:
    """Return the figures of each task."""
    calls = pd.DataFrame(totals.calls, columns=["task", "side", *CALL])
    samples = pd.DataFrame(totals.samples, columns=["task", "exit", "unreadable", *SELECTION])
    failed = Counter(key[0] for failures in totals.failures.causes.values() for _, key in failures)
    tasks: dict[str, dict[str, Any]] = {}
    for task in totals.tasks:
        of_task, of_calls = samples[samples.task == task], calls[calls.task == task]
        exits = Counter(of_task.exit)
        tasks[task] = {
            "samples": len(of_task),
            "not_answered": failed[task],
            **_sums(of_task, ["unreadable", *(SELECTION if config.transfer == "sparse" else ())]),
            "wall_s": None if totals.resumed else round(totals.task_wall_s[task], 6),
            "exits": {exit: exits[exit] for exit in config.method.exits},
        }
        for engine in config.engines():
            usage = _sums(of_calls[of_calls.side == engine.side], CALL)
            unused = {name for name in SPECULATION if not usage["calls"] or usage[name] is None}
            unused |= {name for name in ("shared_calls", "cut_calls") if not usage[name]}
            tasks[task][engine.side] = {name: figure for name, figure in usage.items() if name not in unused}
    return tasks


def _sums(rows: pd.DataFrame, columns: Iterable[str]) -> dict[str, Any]:
    """Return the sum of each column. A sum with a number that is not known is None."""
    sums = {column: pd.to_numeric(rows[column]).sum(skipna=False) for column in columns}
    return {
        name: None if pd.isna(value) else round(float(value), 6) if name == "call_seconds" else int(value)
        for name, value in sums.items()
    }


def version(package: str) -> str:
    """Return the version of an installed package, or "unknown"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


# --- as a table ---


def table(totals: Totals, of_run: Mapping[str, Any], config: Config) -> str:
    """Return the final table: one row per task with its samples, its exits, and the calls, output tokens and seconds of
    each engine. Below it come the wall times and the samples without an answer. `of_run`: the figures of the run.

    A method with a single exit has no exit columns. The columns `Not answered` and `Unreadable` are only present if
    there are such samples. An engine has a column for the tokens of its answers if it reports them for all its calls.
    An engine with shared calls has a column for their number and none for seconds, and the run has no wall times.
    """
    from pytablewriter import MarkdownTableWriter  # takes a second

    rows = pd.DataFrame([_row(task, of_task, config) for task, of_task in of_run["tasks"].items()])
    for side in [engine.side for engine in config.engines()]:
        shared, seconds = f"{side} shared calls", f"{side} call seconds"
        rows = rows.drop(columns=seconds if rows[shared].any() else shared)
    empty = [name for name in ("Not answered", "Unreadable") if not rows[name].any()]
    rows = rows.drop(columns=empty).dropna(axis="columns")  # answer tokens that are not known for all calls
    writer = MarkdownTableWriter(headers=list(rows), value_matrix=rows.astype(str).to_numpy().tolist())
    ranks = f", {totals.ranks} ranks" if totals.ranks > 1 else ""
    models = ", ".join(f"{engine.side} {without_password(engine.model)}" for engine in config.engines())
    given = "".join(f", {name}={value}" for name, value in of_run["options"].items())
    lines = "\n".join(_lines(totals, of_run["tasks"]))
    return f"\nmai_cascade method={config.method.name}{given}: {models}{ranks}\n{writer.dumps()}\n{lines}\n"


def _row(task: str, of_task: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Return the cells of a task by column."""
    answered = of_task["samples"]
    row = {"Task": task, "Samples": answered}
    row |= {"Not answered": of_task["not_answered"], "Unreadable": of_task["unreadable"]}
    if len(config.method.exits) > 1:
        row |= {exit: _part(count, answered, "") for exit, count in of_task["exits"].items()}
    if config.transfer == "sparse":
        scored = of_task["scored_tokens"]
        row["kept tokens"] = _part(of_task["kept_tokens"], scored, f" of {scored}")
    for side in [engine.side for engine in config.engines()]:
        usage = of_task[side]
        row |= {
            f"{side} calls": usage["calls"],
            f"{side} shared calls": usage.get("shared_calls", 0),
            f"{side} output tokens": usage["output_tokens"],
            f"{side} answer tokens": usage["answer_tokens"],
            f"{side} call seconds": f"{usage['call_seconds']:.1f}",
        }
    return row


def _part(part: int, whole: int, of_whole: str) -> str:
    return f"{part}{of_whole} ({part / max(1, whole):.2%})"


def _lines(totals: Totals, tasks: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Return the lines below the table."""
    usage = [of_task[side] for of_task in tasks.values() for side in SIDES if side in of_task]
    if shared := sum(engine.get("shared_calls", 0) for engine in usage):
        yield (
            f"{shared} of {sum(engine['calls'] for engine in usage)} calls are shared: other runs made them. So this "
            "run has no times."
        )
    else:
        start = " of this start only, because the run was resumed" if totals.resumed else ""
        by_task = ", ".join(f"{task} {totals.task_wall_s[task]:.1f} s" for task in tasks)
        yield f"Wall time {totals.wall_s:.1f} s{start}{f': {by_task}' if len(tasks) > 1 else ''}."
    for side in SIDES:
        if cut := sum(of_task.get(side, {}).get("cut_calls", 0) for of_task in tasks.values()):
            yield f"Cut off at a token limit (`finish_reason` is `length`): {cut} calls of the {side} model."
    if unreadable := sum(of_task["unreadable"] for of_task in tasks.values()):
        yield (
            f"Unreadable: the task's scorer cannot read the final answer of {unreadable} samples. lmms-eval's "
            "MMMU scorer guesses the option of such a multiple-choice answer at random; all other scorers give it 0."
        )
    if failed := totals.failures.count:
        kinds = ", ".join(f"{count} {kind}" for kind, count in totals.failures.kinds.items())
        yield f"{failed} samples have no answer and are left out of all scores: {kinds}."
        yield str(totals.failures)
