"""Counts calls, exits and errors of a run.

All reports take these figures from here; the wall time comes from `Progress`.
"""

from collections import Counter
from dataclasses import dataclass, field

from lmms_eval_mai.engines.base import SIDES, Call, Side
from lmms_eval_mai.errors import SampleError
from lmms_eval_mai.paper.sample import Exit, Trace
from lmms_eval_mai.run.failures import Failures
from lmms_eval_mai.run.journal.files import SampleKey


@dataclass
class Usage:
    """The calls of one engine, and their cost."""

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    """Sum of the calls' total seconds. Calls overlap, so it may be longer than the wall time."""

    @classmethod
    def of(cls, call: Call) -> "Usage":
        """Return the usage of one call."""
        return cls(1, call.prompt_tokens, call.cached_tokens, call.output_tokens, call.total_s)

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.seconds + other.seconds,
        )


@dataclass
class TaskTotals:
    """The figures of one task."""

    samples: int = 0
    """Number of answered samples."""
    failed: int = 0
    """Number of samples without an answer."""
    unreadable: int = 0
    """Number of answered samples whose final answer the scorer cannot read (`Trace.readable`)."""
    exits: Counter[Exit] = field(default_factory=Counter)
    usage: dict[Side, Usage] = field(default_factory=lambda: {side: Usage() for side in SIDES})


class Meter:
    """Adds up traces as they finish. Its size does not depend on the number of samples."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskTotals] = {}
        self.failures = Failures()

    def add(self, trace: Trace) -> None:
        """Count an answered sample and its calls."""
        totals = self.tasks.setdefault(trace.answer.key.task, TaskTotals())
        totals.samples += 1
        totals.unreadable += not trace.readable
        totals.exits[trace.exit] += 1
        for call in trace.calls:
            totals.usage[call.key.side] += Usage.of(call)

    def add_error(self, sample: SampleKey, error: SampleError) -> SampleKey | None:
        """Count a failed sample. Returns the earlier sample with a similar message (`Failures.add`), or None."""
        self.tasks.setdefault(sample[0], TaskTotals()).failed += 1
        return self.failures.add(sample, error)

    def failed(self) -> int:
        """Return the number of failed samples of all tasks."""
        return self.failures.count()

    def unreadable(self) -> int:
        """Return the number of samples of all tasks whose final answer the scorer cannot read."""
        return sum(totals.unreadable for totals in self.tasks.values())

    def exits(self) -> Counter[Exit]:
        """Return the exits of all tasks so far."""
        total: Counter[Exit] = Counter()
        for totals in self.tasks.values():
            total.update(totals.exits)
        return total

    def usage(self, side: Side) -> Usage:
        """Return the sum of one engine's calls over all tasks."""
        return sum((totals.usage[side] for totals in self.tasks.values()), Usage())


@dataclass
class RunTotals:
    """The figures of one run, which may call `Session.run_samples` several times."""

    meter: Meter = field(default_factory=Meter)
    wall_s: float = 0.0
    """Seconds in which samples ran, those of earlier processes included."""
    earlier_s: float = 0.0
    """The part of `wall_s` that earlier processes spent."""
