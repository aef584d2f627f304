"""How busy both engines were: calls in flight over the time of a run, without the pauses of a resumed run."""

from typing import Any

import numpy as np
import numpy.typing as npt

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.reports.records import Run

BINS = 200
"""Parts of the time of a run."""
SHORTEST_PAUSE = 2.0
"""Seconds. A command that resumes a run needs longer to start."""
Array = npt.NDArray[np.float64]


def occupancy(run: Run) -> dict[str, Any] | None:
    """Return the average number of calls in flight of each engine, in `BINS` parts of the time from the first start to
    the last end, and the share of the time with at least one call. Pauses are left out, and their seconds are returned.
    None: a call has no start time, for example because another run made it.
    """
    calls = [call for document in run.documents for call in document.calls]
    known = [
        (call.side, call.started_at, call.seconds)
        for call in calls
        if call.started_at is not None and call.seconds is not None
    ]
    if not known or len(known) < len(calls):
        return None
    starts = np.array([start for _, start, _ in known])
    times = np.stack([starts, starts + [seconds for _, _, seconds in known]], axis=1)
    times, paused = without_pauses(times - times.min(), run.wall_s)
    total = float(times.max())
    if total <= 0:
        return None
    edges = np.linspace(0, total, BINS + 1)
    sides = {}
    for side in SIDES:
        of_side = times[[name == side for name, _, _ in known]]
        if len(of_side):
            found = in_flight(of_side, edges)
            sides[side] = {"calls": len(of_side), "busy": busy(of_side) / total, "in_flight": found}
    return {"seconds": total, "paused": paused, "sides": sides}


def without_pauses(times: Array, wall_s: float | None) -> tuple[Array, float]:
    """Return the times without the pauses of a resumed run, and the seconds of the pauses.

    A pause is a time without any call that contradicts the wall time of answering, which does not count pauses: the
    longest one first, while at least half of it is more than the wall time allows.
    """
    if wall_s is None:
        return times, 0.0
    found = idle(times)
    excess = float(np.ptp(times)) - wall_s
    pauses = []
    for start, end in found[np.argsort(found[:, 0] - found[:, 1])]:
        if end - start < SHORTEST_PAUSE or (end - start) / 2 > excess:
            break
        excess -= end - start
        pauses.append((end, end - start))
    ends, lengths = np.array(sorted(pauses)).reshape(-1, 2).T
    before = np.concatenate([[0.0], np.cumsum(lengths)])
    shifted: Array = times - before[np.searchsorted(ends, times, side="right")]
    return shifted, float(lengths.sum())


def idle(times: Array) -> Array:
    """Return start and end of each time without a call in flight, between the first call and the last one."""
    ordered = times[np.argsort(times[:, 0])]
    ends, starts = np.maximum.accumulate(ordered[:, 1])[:-1], ordered[1:, 0]
    return np.stack([ends, starts], axis=1)[starts > ends]


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
    return float(np.ptp(times) - np.diff(idle(times)).sum())
