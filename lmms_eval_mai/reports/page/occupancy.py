"""How busy both engines were: calls in flight over the time of a run, without the pauses of a resumed run."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.reports.read import Run

BINS = 200
"""Parts of the time of a run."""
SHORTEST_PAUSE = 2.0
"""Seconds. A command that resumes a run needs longer to start."""
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Use:
    """How one engine was used."""

    calls: int
    busy: float
    """Share of the time with at least one call in flight."""
    in_flight: list[float]
    """Average number of calls in flight in each of `BINS` parts of the time."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The calls of a run from the first start to the last end."""

    seconds: float
    paused: float
    """Seconds of pauses, which are left out."""
    sides: dict[Side, Use]


def occupancy(run: Run) -> Occupancy | None:
    """Return how both engines were used. None: a call has no start time, for example because another run made
    it, or these are the calls of several runs."""
    calls = run.calls
    if run.repeats or calls.empty or calls[["started_at", "seconds"]].isna().any(axis=None):
        return None
    start = calls.started_at - calls.started_at.min()
    times, paused = without_pauses(np.column_stack([start, start + calls.seconds]), run.wall_s)
    seconds = float(times.max())
    if seconds <= 0:
        return None
    edges = np.linspace(0, seconds, BINS + 1)
    of_side = {side: times[calls.side.to_numpy() == side] for side in SIDES}
    sides = {
        side: Use(len(one), busy(one) / seconds, in_flight(one, edges)) for side, one in of_side.items() if len(one)
    }
    return Occupancy(seconds, paused, sides)


def without_pauses(times: Array, wall_s: float | None) -> tuple[Array, float]:
    """Return start and end of the calls without the pauses of a resumed run, and the seconds of the pauses.

    `wall_s`, the time of answering, does not count pauses. So a time without any call is a pause if the whole is longer
    than `wall_s` by at least half of it; the longest one is looked at first.
    """
    idle_times = idle(times)
    excess = 0.0 if wall_s is None else float(np.ptp(times)) - wall_s
    pauses = []
    for start, end in idle_times[np.argsort(idle_times[:, 0] - idle_times[:, 1])]:
        if end - start < SHORTEST_PAUSE or (end - start) / 2 > excess:
            break
        excess -= end - start
        pauses.append((end, end - start))
    ends, lengths = np.array(sorted(pauses)).reshape(-1, 2).T
    before = np.concatenate([[0.0], np.cumsum(lengths)])
    return times - before[np.searchsorted(ends, times, side="right")], float(lengths.sum())


def idle(times: Array) -> Array:
    """Return start and end of each time without a call in flight, between the first call and the last one."""
    ordered = times[np.argsort(times[:, 0])]
    starts, ends = np.maximum.accumulate(ordered[:, 1])[:-1], ordered[1:, 0]
    return np.stack([starts, ends], axis=1)[ends > starts]


def busy(times: Array) -> float:
    """Return the seconds with at least one call in flight."""
    return float(np.ptp(times) - np.diff(idle(times)).sum())


def in_flight(times: Array, edges: Array) -> list[float]:
    """Return the average number of calls in flight between each two edges. `times`: start and end of each call."""
    lasted = np.array([np.clip(edge - times, 0, None).sum(axis=0) for edge in edges])  # since all starts, and all ends
    areas = np.diff(lasted[:, 0] - lasted[:, 1])
    return [round(max(0.0, float(one)), 3) for one in areas / np.diff(edges)]
