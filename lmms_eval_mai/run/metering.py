"""The only meter of a run: every figure of every report is a sum over calls."""

from collections import Counter
from dataclasses import dataclass, field

from lmms_eval_mai.engines.base import SIDES, Call, Side
from lmms_eval_mai.errors import MaiError, SampleError
from lmms_eval_mai.paper.sample import Exit, Trace

SHOWN_ERRORS = 10


@dataclass
class Usage:
    """The calls of one engine, and their cost."""

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    """Sum of the calls' total seconds. Calls overlap, so this exceeds the wall time."""

    def add(self, call: Call) -> None:
        self.calls += 1
        self.prompt_tokens += call.prompt_tokens
        self.cached_tokens += call.cached_tokens
        self.output_tokens += call.output_tokens
        self.seconds += call.total_s


@dataclass
class TaskTotals:
    """The figures of one task."""

    samples: int = 0
    """Number of answered samples."""
    errors: Counter[str] = field(default_factory=Counter)
    """Kind of error -> number of samples that failed with it."""
    exits: Counter[Exit] = field(default_factory=Counter)
    usage: dict[Side, Usage] = field(default_factory=lambda: {side: Usage() for side in SIDES})

    def check(self, task: str) -> None:
        """Raises `MaiError` if the exits do not sum to the samples."""
        if sum(self.exits.values()) != self.samples:
            raise MaiError(f"The exits of {task} sum to {sum(self.exits.values())}, not to its {self.samples} samples.")


class Meter:
    """Adds up traces as they finish. Its size does not depend on the number of samples."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskTotals] = {}
        self.first_errors: list[str] = []
        """Errors of the first `SHOWN_ERRORS` failed samples."""

    def add(self, trace: Trace) -> None:
        totals = self.tasks.setdefault(trace.answer.key.task, TaskTotals())
        totals.samples += 1
        totals.exits[trace.exit] += 1
        for call in trace.calls:
            totals.usage[call.key.side].add(call)

    def add_error(self, task: str, error: SampleError) -> None:
        self.tasks.setdefault(task, TaskTotals()).errors[type(error).__name__] += 1
        if len(self.first_errors) < SHOWN_ERRORS:
            self.first_errors.append(f"{type(error).__name__}: {error}")

    def failed(self) -> int:
        """Return the number of failed samples of all tasks."""
        return sum(totals.errors.total() for totals in self.tasks.values())

    def exits(self) -> Counter[Exit]:
        """Return the exits of all tasks so far."""
        total: Counter[Exit] = Counter()
        for totals in self.tasks.values():
            total.update(totals.exits)
        return total

    def usage(self, side: Side) -> Usage:
        """Return the sum of one engine's calls over all tasks."""
        total = Usage()
        for totals in self.tasks.values():
            one = totals.usage[side]
            total.calls += one.calls
            total.prompt_tokens += one.prompt_tokens
            total.cached_tokens += one.cached_tokens
            total.output_tokens += one.output_tokens
            total.seconds += one.seconds
        return total


@dataclass
class RunTotals:
    """The figures of one run, which may call `Session.run_samples` several times."""

    meter: Meter = field(default_factory=Meter)
    wall_s: float = 0.0
    """Seconds in which samples ran, those of earlier processes included."""
    earlier_s: float = 0.0
    """The part of `wall_s` that earlier processes spent."""
