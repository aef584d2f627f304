"""Groups the failed samples of a run by their cause, and turns unexpected errors into failed samples."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable

from loguru import logger

from lmms_eval_mai.errors import MaiError, SampleError
from lmms_eval_mai.paper.sample import Sample, Trace
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
        cause = self._causes.get(key)
        if cause is not None:
            cause.add(sample)
            return cause.first
        if len(self._causes) < SHOWN_CAUSES:
            self._causes[key] = _Cause(sample, text)
        return None

    def merge(self, other: "Failures") -> None:
        """Add the failed samples of another rank."""
        self.kinds.update(other.kinds)
        for key, cause in other._causes.items():
            if key in self._causes:
                self._causes[key].merge(cause)
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
        others = self.count() - sum(1 + cause.others for cause in self._causes.values())
        return "\n".join([*lines, f"  ... and {others:,} more, named in the log above"] if others else lines)


class _Cause:
    """One cause: the message of its first error, and the other samples that failed for it."""

    def __init__(self, first: SampleKey, text: str) -> None:
        self.first = first
        self.others = 0
        self._text = text
        self._samples: list[SampleKey] = []
        """The first `SHOWN_DOCUMENTS` other samples."""

    def add(self, sample: SampleKey) -> None:
        self.others += 1
        if len(self._samples) < SHOWN_DOCUMENTS:
            self._samples.append(sample)

    def merge(self, other: "_Cause") -> None:
        """Add the samples of another rank that failed for the same cause."""
        self.others += 1 + other.others
        self._samples = [*self._samples, other.first, *other._samples][:SHOWN_DOCUMENTS]

    def __str__(self) -> str:
        if not self.others:
            return self._text
        more = self.others - len(self._samples)
        documents = ", ".join(map(sample_name, sorted(self._samples))) + (
            f" and {more:,} more, named in the log above" if more else ""
        )
        return f"{self._text} {self.others:,} more with a similar message: {documents}."


def sample_name(sample: SampleKey) -> str:
    """Return a sample's name for messages, such as `pope_s document 12, repeat 1`."""
    task, document, repeat = sample
    return f"{task} document {document}" + (f", repeat {repeat}" if repeat else "")


async def convert_unexpected_error(sample: Sample, running: Awaitable[Trace]) -> Trace:
    """Return the trace. An unexpected error, for example of a parser, fails this sample and not the run."""
    try:
        return await running
    except (MaiError, asyncio.CancelledError):
        raise
    except Exception as error:
        logger.opt(exception=error).debug("mai_cascade: unexpected error")
        raise SampleError(
            f"{sample.task} document {sample.doc_id}: {type(error).__name__}: {error}. This is an error in "
            "lmms-eval-mai or in lmms-eval's parser. Please run the command again with --verbosity DEBUG and report "
            "the traceback that the log then shows."
        ) from error
