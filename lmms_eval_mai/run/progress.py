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
from lmms_eval_mai.run.metering import RunTotals

Outcome = Trace | SampleError
"""The result of a sample: its trace or its error."""


class ProgressLine(tqdm):  # type: ignore[misc]  # tqdm has no types
    """A line of tqdm that ends in the exits so far. Their text is made only when the line is shown."""

    totals: RunTotals | None = None

    @property
    def format_dict(self) -> dict[str, Any]:
        """Return the fields of the line. tqdm's own thread calls this too."""
        exits = self.totals.exits() if self.totals is not None else {}
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
        self.bar.totals = self.totals
        self._counted_until = self._last_exit_at = time.perf_counter()

    async def report(self, index: int, outcome: Outcome) -> bool:
        """Record a finished sample. Returns whether the run may go on."""
        sample = self.keys[index]
        self.outcomes[index] = outcome
        # Samples of several tasks run at the same time, so the time between two finished samples belongs to the task of
        # the second one.
        now = time.perf_counter()
        seconds, self._counted_until = now - self._counted_until, now
        self.totals.wall_s += seconds
        self.totals.task(sample[0]).wall_s += seconds
        if isinstance(outcome, SampleError):
            await self._add_error(sample, outcome)
        else:
            seconds, self._last_exit_at = now - self._last_exit_at, now
            if self.journal is not None:
                await self.journal.add_exit(sample, outcome.exit, seconds)
            self.totals.add(outcome)
        if sample not in self.done:
            self.bar.update()
        return self.totals.failures.count() <= self.allowed_errors

    async def _add_error(self, sample: SampleKey, error: SampleError) -> None:
        earlier = self.totals.add_error(sample, error)
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
