"""Summaries of repeated measurements."""

import statistics
from collections.abc import Sequence

from lmms_eval_mai.profiles.profile import Seconds


def seconds_of(found: Sequence[float]) -> Seconds:
    """Return mean, median and spread of some durations."""
    return Seconds(
        mean=statistics.fmean(found),
        median=statistics.median(found),
        deviation=statistics.stdev(found) if len(found) > 1 else None,
        least=min(found),
        greatest=max(found),
        repeats=len(found),
    )
