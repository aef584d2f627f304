"""The table of a bench: medians, and ratios of two rows with their intervals over the repeats."""

import math

import pandas as pd

from lmms_eval_mai.reports.report import Estimate, Of, Report, table
from lmms_eval_mai.statistics import mean
from lmms_eval_mai.times.bench import ROWS, Level, Measurement, shown

NOTES = (
    "Measured wall time: medians of interleaved runs, without the starts of the engines.",
    "Reference / row and row / MAI: ratios of the times at the same level. The reference is large R; of the assistant, "
    "transformers alone; of mode=large, lmms-eval's own vllm. Each ratio is the geometric mean over the repeats that "
    "have both rows, with the 95% interval of Student's t distribution of its logarithm. It needs two repeats, and is "
    "wide with few.",
    '"With starts" adds the starts of the engines, or is the whole process of lmms-eval.',
)


def report(measurement: Measurement) -> Report:
    """Return the table of all runs, and the sentences about rows that failed. There must be a run."""
    runs = measurement.table
    gaps = [] if measurement.complete else ["The measurement was stopped, so some rows have fewer runs than others."]
    for name, reason in measurement.failed.items():
        state = "has only the runs before its error" if (runs["row"] == name).any() else "has no runs"
        gaps.append(f"{name} {state}: {reason}")
    starts = pd.DataFrame(measurement.starts, columns=["engine", "seconds"]).groupby("engine")["seconds"].median()
    levels = runs["level"].unique()
    cells = [(name, level, runs[(runs["row"] == name) & (runs["level"] == level)]) for level in levels for name in ROWS]

    def with_starts_s(name: str, one: pd.DataFrame) -> float:
        own = starts[starts.index.isin(ROWS[name].engines)].sum()
        return float(one["whole_s"].astype(float).fillna(one["seconds"]).median() + own)

    def accepted(one: pd.DataFrame) -> float | None:
        proposed = one["proposed_tokens"].astype(float).sum()
        return 100 * float(one["accepted_tokens"].astype(float).sum() / proposed) if proposed else None

    columns: tuple[Of[tuple[str, Level, pd.DataFrame]], ...] = (
        Of("row", "text", 0, lambda cell: ROWS[cell[0]].title),
        Of("open documents", "text", 0, lambda cell: shown(cell[1])),
        Of("documents", "count", 0, lambda cell: int(cell[2]["documents"].iloc[0])),
        Of("repeats", "count", 0, lambda cell: len(cell[2])),
        Of("seconds", "number", 2, lambda cell: cell[2]["seconds"].median()),
        Of("all runs", "text", 0, lambda cell: ", ".join(f"{seconds:.2f}" for seconds in cell[2]["seconds"])),
        Of("s per document", "number", 3, lambda cell: (cell[2]["seconds"] / cell[2]["documents"]).median()),
        Of("reference / row", "number", 2, lambda cell: ratio(runs, ROWS[cell[0]].reference, cell[0], cell[1])),
        Of("row / MAI", "number", 2, lambda cell: ratio(runs, cell[0], "mai", cell[1])),
        Of("with starts, s", "number", 1, lambda cell: with_starts_s(cell[0], cell[2])),
        Of("accepted drafts, %", "number", 1, lambda cell: accepted(cell[2])),
    )
    rows = [cell for cell in cells if len(cell[2])]
    return Report((), tuple(table("bench", "Measured time of the methods", columns, rows, NOTES)), (), (), tuple(gaps))


def ratio(runs: pd.DataFrame, above: str, below: str, level: Level) -> Estimate | None:
    """Return the time of one row divided by that of another: the geometric mean over the repeats that have both, with
    its interval; `n` is their number. None: there is none, or the rows are the same."""
    both = runs[runs["level"] == level].pivot(index="repeat", columns="row", values="seconds").reindex(
        columns=[above, below]).dropna()  # fmt: skip
    if above == below or both.empty:
        return None
    found = mean([math.log(one) for one in both[above] / both[below]])
    low, high = (None if math.isnan(end) else math.exp(end) for end in (found.low, found.high))
    return Estimate(math.exp(found.value), found.n, low, high)
