"""Records finished samples: outcomes, failures, call store and progress line."""

import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from loguru import logger
from tqdm import tqdm

from lmms_eval_mai.errors import SampleError
from lmms_eval_mai.method.trace import Trace
from lmms_eval_mai.run.failures import Failures, sample_name
from lmms_eval_mai.run.store import SampleKey, Store

Outcome = Trace | SampleError
"""The result of a sample: its trace or its error."""


class _Lines:
    """A text file in which each state of a progress bar is a line of its own."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.last = file, ""

    def write(self, text: str) -> None:
        if (state := text.strip()) not in ("", self.last):  # at its end, a bar writes its last state again
            self.file.write(f"{state}\n")
            self.last = state

    def flush(self) -> None:
        self.file.flush()


def progress_bar(total: int, shown: bool, done: int = 0) -> tqdm:
    """Return a progress line of the form "mai_cascade: 120/200, 00:12 left, agree_short=80, agree_think=40". `done`:
    samples that an earlier process finished.

    A terminal shows it in place. A log gets a line each minute.
    """
    in_place = sys.stderr.isatty()
    seconds = 0.2 if in_place else 60.0
    return tqdm(
        total=total,
        initial=done,
        desc="mai_cascade",
        bar_format="{desc}: {n_fmt}/{total_fmt}, {remaining} left{postfix}",
        file=sys.stderr if in_place else _Lines(sys.stderr),
        mininterval=seconds,
        maxinterval=max(10.0, seconds),  # tqdm updates the line at least this often
        delay=0 if in_place else seconds,
        disable=not shown,
    )


@dataclass
class Progress:
    """The samples of one call of `Evaluation.answer` that are finished so far."""

    keys: Sequence[SampleKey]
    failures: Failures
    store: Store | None
    allowed_errors: int
    bar: tqdm
    done: Collection[SampleKey] = ()
    """Samples that an earlier process finished. The progress line counts them from the beginning."""
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """Index of the sample -> its outcome."""
    _exits: Counter[str] = field(default_factory=Counter, init=False)

    async def report(self, index: int, outcome: Outcome) -> bool:
        """Record a finished sample. Returns whether the run may go on."""
        sample = self.keys[index]
        self.outcomes[index] = outcome
        if isinstance(outcome, SampleError):
            is_first = self.failures.add(sample, outcome)
            text = f"{type(outcome).__name__}: {outcome}" if is_first else f"{type(outcome).__name__}, as before"
            with tqdm.external_write_mode():
                logger.warning(f"mai_cascade: {sample_name(sample)} failed and is not scored: {text}")
        else:
            if self.store is not None:
                await self.store.add_sample(sample)
            self._exits[outcome.exit] += 1
            shown = ", ".join(f"{exit}={count}" for exit, count in self._exits.items())
            self.bar.set_postfix_str(shown, refresh=False)
        if sample not in self.done:
            self.bar.update()
        return self.failures.count <= self.allowed_errors
