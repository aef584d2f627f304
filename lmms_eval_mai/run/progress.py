"""Records finished samples: outcomes, totals, journal and progress line."""

import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from loguru import logger
from tqdm import tqdm

from lmms_eval_mai.errors import SampleError
from lmms_eval_mai.paper.sample import Trace
from lmms_eval_mai.run.failures import sample_name
from lmms_eval_mai.run.journal.files import SampleKey
from lmms_eval_mai.run.journal.journal import Journal
from lmms_eval_mai.run.metering import Meter, RunTotals

Outcome = Trace | SampleError
"""The result of a sample: its trace or its error."""


class ProgressLine(tqdm):  # type: ignore[misc]  # tqdm has no types
    """A line of tqdm that ends in the exits so far. Their text is made only when the line is shown."""

    meter: Meter | None = None

    @property
    def format_dict(self) -> dict[str, Any]:
        """Return the fields of the line. tqdm's own thread calls this too."""
        exits = self.meter.exits() if self.meter is not None else {}
        return {**super().format_dict, "exits": "".join(f", {exit}={count}" for exit, count in exits.items())}


def progress_bar(total: int, shown: bool, done: int = 0) -> ProgressLine:
    """Return a progress line of the form "mai_cascade: 120/200, 00:12 left, agree_short=80, agree_think=40". `done`:
    samples that an earlier process finished.

    A terminal shows it in place. In a log file every update adds text, so there it is updated once a minute.
    """
    seconds = 0.2 if sys.stderr.isatty() else 60.0
    return ProgressLine(
        total=total,
        initial=done,
        desc="mai_cascade",
        bar_format="{desc}: {n_fmt}/{total_fmt}, {remaining} left{exits}",
        mininterval=seconds,
        maxinterval=max(10.0, seconds),  # tqdm updates the line at least this often
        disable=not shown,
    )


@dataclass
class Progress:
    """The samples of one call of `Run.run_samples` that are finished so far."""

    keys: Sequence[SampleKey]
    totals: RunTotals
    journal: Journal | None
    allowed_errors: int
    bar: ProgressLine
    done: Collection[SampleKey] = ()
    """Samples that an earlier process finished. The progress line counts them from the beginning."""
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """Index of the sample -> its outcome."""

    def __post_init__(self) -> None:
        self.bar.meter = self.totals.meter
        self._counted_until = self._last_exit_at = time.perf_counter()

    async def report(self, index: int, outcome: Outcome) -> bool:
        """Record a finished sample. Returns whether the run may go on."""
        self.outcomes[index] = outcome
        self.count_time(self.keys[index][0])
        if isinstance(outcome, SampleError):
            await self._add_error(index, outcome)
        else:
            await self._add_trace(index, outcome)
        if self.keys[index] not in self.done:
            self.bar.update()
        return self.totals.meter.failed() <= self.allowed_errors

    def count_time(self, task: str) -> None:
        """Add the seconds since the previous call, or since the beginning, to the wall times of the run and of a task.

        Samples of several tasks run at the same time, so the time between two finished samples belongs to the task of
        the second one.
        """
        now = time.perf_counter()
        seconds, self._counted_until = now - self._counted_until, now
        self.totals.wall_s += seconds
        self.totals.meter.task(task).wall_s += seconds

    async def _add_trace(self, index: int, trace: Trace) -> None:
        seconds, self._last_exit_at = self._counted_until - self._last_exit_at, self._counted_until
        if self.journal is not None:
            await self.journal.add_exit(self.keys[index], trace.exit, seconds)
        self.totals.meter.add(trace)

    async def _add_error(self, index: int, error: SampleError) -> None:
        sample = self.keys[index]
        earlier = self.totals.meter.add_error(sample, error)
        kind = type(error).__name__
        if earlier is None:
            text = f"sample failed and is not scored: {kind}: {error}"
        else:
            text = (
                f"{sample_name(sample)} failed and is not scored: {kind}, with a message like that of "
                f"{sample_name(earlier)}."
            )
        with tqdm.external_write_mode():
            logger.warning(f"mai_cascade: {text}")
        if self.journal is not None:
            await self.journal.add_error(sample, error)
