"""Groups the failed samples of a run by their cause."""

import re
from collections import Counter
from dataclasses import dataclass

from lmms_eval_mai.errors import MaiError, SampleError
from lmms_eval_mai.run.journal.files import SampleKey

SHOWN_CAUSES = 10
SHOWN_DOCUMENTS = 10


class Failures:
    """The failed samples of a run. Its size does not depend on the number of samples.

    Errors are counted as one cause if they have the same type and their messages differ only in numbers, for example in
    the number of the document or in the length of the prompt.
    """

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        """Kind of error -> number of samples that failed with it."""
        self._causes: dict[str, _Cause] = {}

    def add(self, sample: SampleKey, error: SampleError) -> SampleKey | None:
        """Count a failed sample. Returns the earlier sample whose message is kept for its cause.

        None: the message of this sample must be logged, because the sample is the first of its cause, or because its
        cause is not among the first `SHOWN_CAUSES`, which are the only ones that are kept.
        """
        text = f"{type(error).__name__}: {error}"
        self.kinds[type(error).__name__] += 1
        key = re.sub(r"\d+", "0", text)
        known = self._causes.get(key)
        self._add(key, _Cause(text, [sample]))
        return None if known is None else known.samples[0]

    def merge(self, other: "Failures") -> None:
        """Add the failed samples of another rank."""
        self.kinds.update(other.kinds)
        for key, cause in other._causes.items():
            self._add(key, cause)

    def _add(self, key: str, cause: "_Cause") -> None:
        """Add samples that failed for one cause. Only the first `SHOWN_CAUSES` causes are kept."""
        if (known := self._causes.get(key)) is not None:
            known.count += cause.count
            known.samples = [*known.samples, *cause.samples][: 1 + SHOWN_DOCUMENTS]
        elif len(self._causes) < SHOWN_CAUSES:
            self._causes[key] = cause

    def count(self) -> int:
        """Return the number of failed samples."""
        return self.kinds.total()

    def add_to_message(self, error: MaiError) -> None:
        """Add the failed samples, if there are any, to the error that ends the run."""
        if count := self.count():
            error.args = (f"{error}\nBefore this error, {count:,} sample{'s' * (count != 1)} failed:\n{self}\n",)

    def __str__(self) -> str:
        """Return one line per cause: its first error, and the other samples that failed for it."""
        lines = [f"  {cause}" for cause in self._causes.values()]
        others = self.count() - sum(cause.count for cause in self._causes.values())
        return "\n".join([*lines, f"  ... and {others:,} more, named in the log above"] if others else lines)


@dataclass
class _Cause:
    """One cause: the message of its first error, and the samples that failed for it."""

    text: str
    samples: list[SampleKey]
    """The first one, whose message is kept, and `SHOWN_DOCUMENTS` others."""
    count: int = 1

    def __str__(self) -> str:
        others = self.samples[1:]
        if not others:
            return self.text
        more = self.count - len(self.samples)
        documents = ", ".join(map(sample_name, sorted(others))) + (
            f" and {more:,} more, named in the log above" if more else ""
        )
        return f"{self.text} {self.count - 1:,} more with a similar message: {documents}."


def sample_name(sample: SampleKey) -> str:
    """Return a sample's name for messages, such as `pope_s document 12, repeat 1`."""
    task, document, repeat = sample
    return f"{task} document {document}" + (f", repeat {repeat}" if repeat else "")
