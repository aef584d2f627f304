"""Counts calls, exits and errors of a run.

All reports take these figures from here. `Progress` measures the wall times.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
from typing import Self

from lmms_eval_mai.contract import Call, Side, Stage
from lmms_eval_mai.errors import SampleError
from lmms_eval_mai.paper.sample import Exit, Trace
from lmms_eval_mai.paper.sparse import Selection
from lmms_eval_mai.run.failures import Failures
from lmms_eval_mai.run.journal.files import SampleKey
from lmms_eval_mai.run.trace_record import SPECULATION


class Sums:
    """A dataclass of numbers, which adds up field by field. A sum with a number that is not known (None) is not
    known."""

    def __add__(self, other: Self) -> Self:
        numbers = [(getattr(self, field.name), getattr(other, field.name)) for field in fields(self)]  # type: ignore[arg-type]
        return type(self)(*(None if a is None or b is None else a + b for a, b in numbers))


@dataclass
class Usage(Sums):
    """A number of calls, and their cost."""

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    call_seconds: float = 0.0
    """Sum of the calls' total seconds, without shared calls. Calls overlap, so it may be longer than the wall time."""
    answer_tokens: int | None = 0
    """Tokens of the extracted answers. This and the next three are None if a call lacks the number."""
    proposed_tokens: int | None = 0
    accepted_tokens: int | None = 0
    target_calls: int | None = 0
    shared_calls: int = 0
    """Number of the calls that another run of the command made (`Call.shared`). They have tokens and no seconds."""

    @classmethod
    def of(cls, call: Call) -> "Usage":
        """Return the usage of one call."""
        names = ("prompt_tokens", "cached_tokens", "output_tokens", "answer_tokens", *SPECULATION)
        own = {name: getattr(call, name) for name in names}
        return cls(calls=1, call_seconds=call.total_s, shared_calls=int(call.shared), **own)


@dataclass
class Selections(Sums):
    """A number of transfers whose tokens were selected (`transfer=sparse`), and the tokens of their thinking."""

    transfers: int = 0
    scored_tokens: int = 0
    kept_tokens: int = 0
    transferred_tokens: int | None = 0
    """Tokens of the kept texts, counted by the large model's tokenizer. None: not known."""
    empty: int = 0
    """Number of transfers for which no token was kept."""

    @classmethod
    def of(cls, selection: Selection) -> "Selections":
        """Return the figures of one selection."""
        counts = selection.scored_tokens, selection.kept_tokens, selection.transferred_tokens
        return cls(1, *counts, empty=int(not selection.positions))


@dataclass
class TaskTotals:
    """The figures of one task."""

    samples: int = 0
    """Number of answered samples."""
    failed: int = 0
    """Number of samples without an answer."""
    unreadable: int = 0
    """Number of answered samples whose final answer the scorer cannot read (`Trace.readable`)."""
    wall_s: float = 0.0
    """Seconds of the run that belong to this task (`Progress`), those of earlier processes included."""
    exits: Counter[Exit] = field(default_factory=Counter)
    usage: dict[tuple[Side, Stage], Usage] = field(default_factory=dict)
    """The calls of each engine and stage. A stage without a call has no entry."""
    selections: Selections = field(default_factory=Selections)

    def usage_of(self, *sides: Side) -> Usage:
        """Return the sum of the calls of these engines."""
        return sum((usage for (side, _), usage in self.usage.items() if side in sides), Usage())

    def add_usage(self, side: Side, stage: Stage, usage: Usage) -> None:
        """Add calls of one engine and stage."""
        self.usage[side, stage] = self.usage.get((side, stage), Usage()) + usage

    def merge(self, other: "TaskTotals") -> None:
        """Add the figures of the same task on another rank. The ranks work at the same time, so the longer wall time
        counts."""
        self.samples += other.samples
        self.failed += other.failed
        self.unreadable += other.unreadable
        self.wall_s = max(self.wall_s, other.wall_s)
        self.exits.update(other.exits)
        self.selections += other.selections
        for (side, stage), usage in other.usage.items():
            self.add_usage(side, stage, usage)


@dataclass
class RunTotals:
    """The figures of one run, which may call `Run.run_samples` several times. Their size does not depend on the number
    of samples."""

    tasks: dict[str, TaskTotals] = field(default_factory=dict)
    """The figures of each task, by name."""
    failures: Failures = field(default_factory=Failures)
    wall_s: float = 0.0
    """Seconds in which samples ran, those of earlier processes included."""
    earlier_s: float = 0.0
    """The part of `wall_s` that earlier processes spent."""
    ranks: int = 1
    """Number of processes (ranks) whose figures these are."""

    def task(self, name: str) -> TaskTotals:
        """Return the figures of a task."""
        return self.tasks.setdefault(name, TaskTotals())

    def add(self, trace: Trace) -> None:
        """Count an answered sample and its calls."""
        totals = self.task(trace.answer.key.task)
        totals.samples += 1
        totals.unreadable += not trace.readable
        totals.exits[trace.exit] += 1
        if trace.selection is not None:
            totals.selections += Selections.of(trace.selection)
        for call in trace.calls:
            totals.add_usage(call.key.side, call.key.stage, Usage.of(call))

    def add_error(self, sample: SampleKey, error: SampleError) -> SampleKey | None:
        """Count a failed sample. Returns the earlier sample with a similar message (`Failures.add`), or None."""
        self.task(sample[0]).failed += 1
        return self.failures.add(sample, error)

    def add_earlier(self, keys: Sequence[SampleKey], wall_s: Callable[[Collection[SampleKey]], float]) -> None:
        """Add the wall time that earlier processes spent on these samples. `wall_s`: `Journal.wall_s`."""
        earlier_s = wall_s(keys)
        self.wall_s += earlier_s
        self.earlier_s += earlier_s
        if earlier_s:
            for name in {task for task, _, _ in keys}:
                self.task(name).wall_s += wall_s([key for key in keys if key[0] == name])

    def of_all_tasks(self) -> TaskTotals:
        """Return the sums over all tasks. Their wall time is that of the longest task."""
        total = TaskTotals()
        for task in self.tasks.values():
            total.merge(task)
        return total

    def exits(self) -> Counter[Exit]:
        """Return the exits of all tasks so far. Any thread may call this."""
        total: Counter[Exit] = Counter()
        for totals in list(self.tasks.values()):  # copies, because samples may finish meanwhile
            total.update(dict(totals.exits))
        return total

    @classmethod
    def of_ranks(cls, ranks: Sequence["RunTotals"]) -> "RunTotals":
        """Return the figures of a run from those of its ranks. The slowest rank decides each wall time."""
        found = cls(
            wall_s=max(one.wall_s for one in ranks),
            earlier_s=max(one.earlier_s for one in ranks),
            ranks=len(ranks),
        )
        for one in ranks:
            for name, totals in one.tasks.items():
                found.task(name).merge(totals)
            found.failures.merge(one.failures)
        return found
