"""How busy both engines were: calls in flight over the time of a run."""

from typing import Any

import numpy as np
import numpy.typing as npt

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.reports.records import Run

BINS = 200
"""Parts of the time of a run."""
Array = npt.NDArray[np.float64]


def occupancy(run: Run) -> dict[str, Any] | None:
    """Return the average number of calls in flight of each engine, in `BINS` parts of the time from the first start to
    the last end, and the share of the time with at least one call. None: a call has no start time, for example because
    another run made it.
    """
    calls = [call for document in run.documents for call in document.calls]
    times = {
        side: np.array(
            [
                (call.started_at, call.started_at + call.seconds)
                for call in calls
                if call.side == side and call.started_at is not None and call.seconds is not None
            ]
        )
        for side in SIDES
    }
    known = [each for each in times.values() if len(each)]
    if not known or sum(map(len, known)) < len(calls):
        return None
    first, last = min(each[:, 0].min() for each in known), max(each[:, 1].max() for each in known)
    if last <= first:
        return None
    edges = np.linspace(0, last - first, BINS + 1)
    sides = {}
    for side, each in times.items():
        if len(each):
            found = in_flight(each - first, edges)
            sides[side] = {"calls": len(each), "busy": busy(each) / (last - first), "in_flight": found}
    return {"seconds": float(last - first), "sides": sides}


def in_flight(times: Array, edges: Array) -> list[float]:
    """Return the average number of calls in flight between each two edges. `times`: start and end of each call."""

    def area(points: Array) -> Array:
        """Return the integral, up to each edge, of the number of points that lie before."""
        ordered = np.sort(points)
        sums = np.concatenate([[0.0], np.cumsum(ordered)])
        before = np.searchsorted(ordered, edges)
        found: Array = before * edges - sums[before]
        return found

    areas = np.diff(area(times[:, 0]) - area(times[:, 1]))
    return [round(max(0.0, float(one)), 3) for one in areas / np.diff(edges)]


def busy(times: Array) -> float:
    """Return the seconds with at least one call in flight."""
    ordered = times[np.argsort(times[:, 0])]
    ends = np.maximum.accumulate(ordered[:, 1])
    gaps = np.maximum(0.0, ordered[1:, 0] - ends[:-1])
    return float(ends[-1] - ordered[0, 0] - gaps.sum())
