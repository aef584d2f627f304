"""Records finished samples: outcomes, failures by cause, call store and progress line."""

import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from loguru import logger
from tqdm import tqdm

from lmms_eval_mai.errors import MaiError, SampleError
from lmms_eval_mai.method.sample import Trace
from lmms_eval_mai.run.store import SampleKey, Store

Outcome = Trace | SampleError
"""The result of a sample: its trace or its error."""
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
        same = self.causes.setdefault(re.sub(r"\d+", "0", text), [])
        same.append((text, sample))
        return len(same) == 1

    @property
    def count(self) -> int:
        return sum(map(len, self.causes.values()))

    @classmethod
    def merged(cls, ranks: Iterable["Failures"]) -> "Failures":
        merged = cls()
        for rank in ranks:
            for cause, samples in rank.causes.items():
                merged.causes.setdefault(cause, []).extend(samples)
        return merged

    @property
    def tasks(self) -> Counter[str]:
        """Task -> its number of failed samples."""
        return Counter(sample[0] for samples in self.causes.values() for _, sample in samples)

    @property
    def by_type(self) -> dict[str, int]:
        """Type of the error -> number of samples, the largest first."""
        types: Counter[str] = Counter()
        for cause, samples in self.causes.items():
            types[cause.partition(":")[0]] += len(samples)
        return dict(types.most_common())

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
