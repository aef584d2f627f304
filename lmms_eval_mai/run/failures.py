"""The samples of a run that have no answer, grouped by their cause."""

import re
from collections import Counter
from collections.abc import Iterable

from lmms_eval_mai.errors import MaiError, SampleError
from lmms_eval_mai.run.store import SampleKey

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

    @classmethod
    def merged(cls, ranks: Iterable["Failures"]) -> "Failures":
        """Return the failed samples of all ranks."""
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
