"""The figure of the page: score over price, with a number for each method and its words in a list."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lmms_eval_mai.analysis.paper_numbers import benchmark_name
from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.tables.verdict import prices

X_ENDS, Y_ENDS = (42, 466), (240, 12)
"""Coordinates of the ends of the axes, in a figure of 480 x 280."""
STEPS = [step * 10.0**power for power in range(-4, 6) for step in (1, 2, 5)]
"""Ticks of the logarithmic axis of seconds."""
TOKENS = [0.0, *(step for step in STEPS if step >= 1)]
"""Ticks of the axis of tokens, which is logarithmic but for its start at 0: a small model alone has none of the large
one."""


class Axis(NamedTuple):
    ticks: Sequence[float]
    ends: tuple[int, int]
    scale: Callable[[npt.ArrayLike], Any]

    def coordinate(self, value: float) -> float:
        ends = self.scale([self.ticks[0], self.ticks[-1]])
        return round(float(np.interp(self.scale(value), ends, self.ends)), 1)


def score_over_price(runs: Runs, benchmark: str) -> dict[str, Any]:
    """Return the figure of a benchmark: its ticks, its points with their coordinates from the cheapest to the dearest,
    each in words, and the names of the methods that lack a score or a price."""
    every = runs.select(benchmark=benchmark)
    costs, unit, about_price = prices(every)
    known = [(costs[run], run, score) for run in every if run in costs and (score := runs.score(run))]
    known.sort(key=lambda point: point[0])
    figure: dict[str, Any] = {
        "benchmark": benchmark_name(benchmark),
        "price": about_price,
        "missing": [runs.name(run.setup) for run in every if run not in {run for _, run, _ in known}],
        "points": [],
    }
    if not known:
        return figure
    scores = [end for *_, score in known for end in (score.value, *score.ends)]
    step = next((step for step in (1, 2, 5, 10) if max(scores) - min(scores) <= 6 * step), 20)
    ends = [price for price, *_ in known]
    x = Axis(ticks(ends, TOKENS), X_ENDS, np.log1p) if unit == "tokens" else Axis(ticks(ends, STEPS), X_ENDS, np.log)
    y = Axis(ticks(scores, range(0, 101, step)), Y_ENDS, np.asarray)
    x_ticks, y_ticks = ([(axis.coordinate(tick), f"{tick:,g}") for tick in axis.ticks] for axis in (x, y))
    points: list[dict[str, Any]] = [
        {
            "x": x.coordinate(price),
            "y": y.coordinate(score.value),
            "interval": [y.coordinate(end) for end in score.ends],
            "family": run.setup.family,
            "words": f"{runs.name(run.setup)}: {score.shown(1)} for "
            + (f"{price:,.1f} large tokens" if unit == "tokens" else f"{price:.3g} {unit}"),
        }
        for price, run, score in known
    ]
    for point, number in zip(points, numbers([(point["x"], point["y"]) for point in points]), strict=True):
        point["number"] = number
    return figure | {"x_ticks": x_ticks, "y_ticks": y_ticks, "points": points}


def numbers(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return where the number of each point is: beside it, if possible where no point and no other number is."""
    taken, numbers = [*points], []
    for x, y in points:
        places = [(x + right, y + down) for down in (-9, 9) for right in (11, -11)]
        free = (place for place in places if all(abs(place[0] - a) > 10 or abs(place[1] - b) > 10 for a, b in taken))
        numbers.append(next(free, places[0]))
        taken.append(numbers[-1])
    return numbers


def ticks(values: Sequence[float], choices: Sequence[float]) -> list[float]:
    """Return the ticks of an axis: those of `choices` from the last one below all values to the first one above."""
    first = max((tick for tick in choices if tick < min(values)), default=choices[0])
    last = min((tick for tick in choices if tick > max(values)), default=choices[-1])
    return [tick for tick in choices if first <= tick <= last]
