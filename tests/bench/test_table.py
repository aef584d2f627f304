"""The rows of the table, its medians and ratios, and the line of JSON."""

import json

import pytest

from lmms_eval_mai.bench import rows, table
from lmms_eval_mai.bench.measure import Measured, Result
from lmms_eval_mai.errors import ArgumentError

RESULT = Result(
    runs=(
        Measured("large-r", 1, 10, 30.0, None, 2943),
        Measured("mai", 1, 10, 8.0, None, 1000),
        Measured("prototype", 32, 10, 20.0, 90.0),
        Measured("hf-speculative", 1, 10, 40.0, None, 2943, proposed_tokens=200, accepted_tokens=50),
        Measured("mai", 1, 10, 6.0, None, 1000),
        Measured("large-r", 1, 10, 20.0, None, 2943),
        Measured("mai", 1, 10, 5.0, None, 1000),
    ),
    start_s={"small": [3.0], "large": [4.0, 6.0], "large alone": [7.0]},
    failed={"hf": "It has no checkpoint."},
)


def test_medians_ratios_and_starts_are_those_of_the_runs() -> None:
    by_row = {line.row: line for line in table.lines(RESULT)}
    assert (by_row["mai"].seconds, by_row["mai"].with_starts_s) == (
        6.0,
        14.0,
    )  # starts: 3 s and the median of 4 and 6 s
    assert (by_row["large-r"].seconds, by_row["large-r"].with_starts_s) == (25.0, 32.0)
    assert by_row["prototype"].with_starts_s == 90.0  # its starts are in its own time
    assert by_row["hf-speculative"].acceptance == 0.25 and by_row["mai"].acceptance is None
    assert table.ratios(list(by_row.values())) == {"large-r / mai, one at a time": pytest.approx(25 / 6)}
    assert table.reference_ratio(by_row["mai"], list(by_row.values())) == pytest.approx(25 / 6)
    assert table.reference_ratio(by_row["hf-speculative"], list(by_row.values())) is None  # hf was not measured


def test_the_table_has_one_line_per_row_and_level_and_the_figures_are_json() -> None:
    lines = table.lines(RESULT)
    shown = table.table(lines)
    assert [line.row for line in lines] == ["large-r", "mai", "hf-speculative", "prototype"]
    (mai,) = (line for line in shown.splitlines() if line.startswith("|MAI  ") or line.startswith("|MAI |"))
    cells = [cell.strip() for cell in mai.strip("|").split("|")]
    assert cells == ["MAI", "one at a time", "10", "6.00", "8.00, 6.00, 5.00", "0.600", "4.17", "14.0", ""]
    figures = json.loads(json.dumps(table.figures(RESULT, {"pair": "demo"}, {"device": "x"})))
    assert figures["failed"] == {"hf": "It has no checkpoint."} and figures["pair"] == "demo"
    (row,) = (one for one in figures["rows"] if one["row"] == "mai")
    assert (row["median_s"], row["runs_s"], row["reference_ratio"]) == (6.0, [8.0, 6.0, 5.0], 4.167)


def test_rows_have_only_their_own_levels() -> None:
    found = rows.cells(rows.chosen(None, forced=True), rows.levels("1,32,max"))
    assert [name for name, level in found if level == 32] == [
        "large-r", "small-r", "full-rt", "mai", "prototype", "vllm-ngram",
    ]  # fmt: skip
    assert {level for name, level in found if name == "hf-speculative"} == {1}
    assert {level for name, level in found if name in ("bound", "lmms-eval-vllm")} == {"max"}
    one_level = rows.cells(rows.chosen(None, forced=True), rows.levels("1"), as_given=False)
    assert [name for name, _ in one_level] == [name for name, level in found if level == 1]
    without = rows.chosen(None, forced=False)
    assert "bound" not in without and "prototype" not in without and "mai" in without


@pytest.mark.parametrize(
    ("names", "levels", "words"),
    [
        ("mia", "1", r"--rows mia is unknown: choose from large-r, .*Did you mean mai"),
        ("bound", "max", "--rows bound needs forced lengths"),
        ("hf", "32", "--rows hf needs --concurrency 1: add it, or leave the row out"),
        ("mai", "0", "--concurrency 0 is invalid: expected numbers of at least 1, or max"),
        ("mai", "all", "--concurrency all is invalid"),
    ],
)
def test_rows_that_cannot_run_are_refused(names: str, levels: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        rows.cells(rows.chosen(names, forced=False), rows.levels(levels))
