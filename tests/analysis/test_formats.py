"""A report for the terminal, as Markdown, CSV, LaTeX and JSON."""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support.folders import POPE
from support.tables import report, row_of

from lmms_eval_mai.analysis.intervals import Estimate
from lmms_eval_mai.analysis.report import FORMATS, Column, Report, Table, text


@pytest.mark.parametrize(
    ("cell", "column", "shown"),
    [
        (None, Column("x", "number", 1, str), ""),
        ("MAI", Column("x", "text", 1, str), "MAI"),
        (12, Column("x", "count", 1, str), "12"),
        (1.25, Column("x", "number", 2, str), "1.25"),
        (0.0004, Column("p", "p", 1, str), "<0.001"),
        (0.0456, Column("p", "p", 1, str), "0.046"),
        (Estimate(89.44, 9000, 88.71, 90.02), Column("x", "number", 1, str), "89.4 (88.7 to 90.0)"),
        (Estimate(89.44, 9000, 88.71, 90.02), Column("x", "brief", 1, str), "89.4"),
        (Estimate(89.44, 9000, 88.71, 90.02, paper=89.2), Column("x", "brief", 1, str), "89.4 [89.2]"),
        (Estimate(89.44, 9000), Column("x", "number", 2, str), "89.44"),
    ],
)
def test_cells_are_shown_with_their_interval_or_with_the_papers_number(
    cell: Estimate | float | str | None, column: Column[Any], shown: str
) -> None:
    assert text(cell, column) == shown


def test_the_terminal_has_aligned_columns_and_in_the_title_what_all_rows_have(tmp_path: Path) -> None:
    POPE.write(tmp_path, "mai")
    methods, by_exit, *_ = FORMATS["terminal"](report([tmp_path], ())).split("\n\n")
    title, head, *lines = methods.splitlines()
    (row,) = [line for line in lines if line.startswith("MAI ")]
    assert title.startswith("Methods") and title.endswith("(POPE, n = 4)")
    assert head.split()[:2] == ["method", "score"] and head.index("score") + len("score") == row.index(")") + 1
    assert [line.split()[0] for line in by_exit.splitlines()[3:6]] == ["agree_short", "agree_think", "transfer"]


WIDE = Table(
    "x",
    "X",
    tuple(
        Column(name, kind, 1, str)
        for name, kind in [("benchmark", "text"), ("method", "text"), *((f"score of {n}", "percent") for n in range(4))]
    ),
    tuple(
        (name, method, *4 * [Estimate(50.0 + number, 100, 40.0, 60.0)])
        for name in ("POPE", "shapes")
        for number, method in enumerate("ab")
    ),
)


@pytest.mark.parametrize(("columns", "name", "is_whole"), [(120, "POPE", True), (60, "a", False)])
def test_intervals_are_on_a_terminal_that_has_room(
    monkeypatch: pytest.MonkeyPatch, columns: int, name: str, is_whole: bool
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = FORMATS["terminal"](Report((WIDE,))).splitlines()
    assert max(map(len, lines)) <= max(80, columns)
    assert lines[2].split()[0] == name and ("50.0 (40.0 to 60.0)" in lines[2]) == is_whole
    assert [line for line in lines if line.startswith("X")] == (["X"] if is_whole else ["X (POPE)", "X (shapes)"])


def test_a_name_has_the_options_that_not_all_runs_have(tmp_path: Path) -> None:
    for number in range(3):
        world = dataclasses.replace(POPE, options={"seed": 1, "temperature": number / 10})
        world.write(tmp_path / str(number), "mai")
    names = [row[1] for row in report([tmp_path], ()).table("methods").rows if "MAI" in str(row[1])]
    assert names == [f"MAI (temperature={number / 10})" for number in range(3)]
    assert "seed=1" in FORMATS["markdown"](report([tmp_path], ()))


def test_markdown_has_all_tables_and_what_is_missing(found: Report) -> None:
    shown = FORMATS["markdown"](found)
    headings = [one for one in shown.split("\n") if one.startswith("#")]
    assert [heading.partition(" (POPE")[0] for heading in headings] == [f"## {table.title}" for table in found.tables]
    bars = Table("x", "X", (Column("a", "text", 1, str),), (("a|b",),))
    assert "a\\|b" in FORMATS["markdown"](Report((bars,)))
    assert "\n* POPE: the paper has 9000 documents and these runs 200, so " in shown


def test_csv_and_json_have_one_row_for_each_row_and_one_column_for_each_key(found: Report) -> None:
    shown = json.loads(FORMATS["json"](found))
    assert shown["gaps"] == list(found.gaps) and shown["tables"].keys() == {table.key for table in found.tables}
    name = ("POPE", "MAI")
    (row,) = [row for row in shown["tables"]["table-10"]["rows"] if (row["benchmark"], row["method"]) == name]
    assert (row["n"], row["score_paper"]) == (200, 89.4)
    lines = list(csv.DictReader(FORMATS["csv"](found).splitlines()))
    assert len(lines) == sum(len(table.rows) for table in found.tables)
    (csv_row,) = [line for line in lines if (line["table"], line["benchmark"], line["method"]) == ("table-10", *name)]
    cell = row_of(found.table("table-10"), *name)["score"]
    assert [float(csv_row[f"score{end}"]) for end in ("", "_low", "_paper")] == [cell.value, cell.low, 89.4]


def test_latex_has_a_table_environment_for_each_table_and_escapes_special_characters(found: Report) -> None:
    shown = FORMATS["latex"](found)
    assert shown.count(r"\begin{tabular}") == shown.count(r"\end{tabular}") == len(found.tables)
    columns = (Column("a_b", "text", 1, str), Column("n", "count", 1, str), Column("p", "p", 1, str))
    lines = FORMATS["latex"](Report((Table("x", "X, %", columns, (("x_1 #{}~^\\", 3, 0.0004),)),))).split("\n")
    assert r"\caption{X, \%}" in lines
    assert r"\toprule" in lines and r"a\_b & n & p \\" in lines
    assert lines[lines.index(r"\midrule") + 1].startswith(r"x\_1 \#\{\}")
