"""The rows of a bench, its medians, and its ratios with their intervals."""

import math

import pytest
from support.tables import row_of, value

from lmms_eval_mai.reports.formats import markdown
from lmms_eval_mai.times import bench
from lmms_eval_mai.times.bench import ROWS, Measured, Measurement, cells

RUNS = [
    Measured("large-r", 1, 1, 10, 30.0, None, 2943),
    Measured("mai", 1, 1, 10, 8.0, None, 1000),
    Measured("hf-speculative", 1, 1, 10, 40.0, None, 2943, proposed_tokens=200, accepted_tokens=50),
    Measured("lmms-eval-mai", "max", 1, 10, 20.0, 90.0),
    Measured("mai", 1, 2, 10, 6.0, None, 1000),
    Measured("large-r", 1, 2, 10, 20.0, None, 2943),
    Measured("mai", 1, 3, 10, 5.0, None, 1000),
]


def measurement(runs: list[Measured]) -> Measurement:
    found = Measurement([], None, None, 3, 8, None, None, False, print, runs=runs)  # type: ignore[arg-type]
    found.starts = [("small", 3.0), ("large", 4.0), ("large", 6.0), ("large alone", 7.0)]
    found.failed = {"hf": "It has no checkpoint."}
    return found


def test_medians_and_starts_are_those_of_the_runs() -> None:
    found = bench.report(measurement(RUNS))
    table = found.table("bench")
    assert [row[0] for row in table.rows] == [ROWS[name].title for name in ("large-r", "mai", "hf-speculative",
                                                                            "lmms-eval-mai")]  # fmt: skip
    mai = row_of(table, "MAI", "one at a time")
    assert (mai["seconds"], mai["all runs"], mai["repeats"]) == (6.0, "8.00, 6.00, 5.00", 3)
    assert (mai["with starts, s"], mai["s per document"]) == (14.0, 0.6)  # starts: 3 s and the median of 4 and 6 s
    assert row_of(table, "large R")["with starts, s"] == 32.0
    assert row_of(table, "lmms-eval --model mai_cascade, mode=large")["with starts, s"] == 90.0  # its whole process
    assert row_of(table, "large R, transformers, small model as assistant")["accepted drafts, %"] == 25.0
    assert mai["accepted drafts, %"] is None
    assert found.gaps[-1] == "hf has no runs: It has no checkpoint."
    assert "|MAI" in markdown(found)


def test_a_ratio_is_of_the_runs_of_the_same_repeat_with_an_interval_over_the_repeats() -> None:
    table = bench.report(measurement(RUNS)).table("bench")
    found = row_of(table, "MAI", "one at a time")["reference / row"]
    assert value(found) == pytest.approx(math.sqrt(30 / 8 * 20 / 6))  # the third run of MAI has no partner
    # The interval of Student's t distribution with one degree of freedom: 12.706 standard errors.
    half = 12.7062 * abs(math.log(30 / 8) - math.log(20 / 6)) / 2
    assert found.n == 2  # type: ignore[union-attr]
    assert found.high == pytest.approx(value(found) * math.exp(half), rel=1e-4)  # type: ignore[union-attr]
    assert value(row_of(table, "large R")["row / MAI"]) == value(found)
    assert row_of(table, "large R")["reference / row"] is None
    assert row_of(table, "large R, transformers, small model as assistant")["reference / row"] is None  # no hf


def test_a_single_repeat_gives_no_interval() -> None:
    found = bench.ratio(measurement(RUNS[:2]).table, "large-r", "mai", 1)
    assert found is not None
    assert (found.value, found.low, found.high, found.n) == (pytest.approx(3.75), None, None, 1)


def test_rows_have_only_their_own_levels() -> None:
    found = cells(None, "1,32,max")
    rows = ["large-r", "small-r", "full-rt", "mai", "mai-confident", "vllm-ngram"]
    assert [name for name, level in found if level == 32] == rows
    assert {level for name, level in found if name == "hf-speculative"} == {1}
    assert {level for name, level in found if name == "lmms-eval-vllm"} == {"max"}
    assert cells(None, "1") == [(name, level) for name, level in found if level == 1]
