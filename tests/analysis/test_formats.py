"""A report for the terminal, as Markdown, CSV, LaTeX and JSON."""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support.folders import POPE, World
from support.tables import row_of
from support.worlds import WORLD, pope_world, write_all

from lmms_eval_mai.analysis.report import Column, Estimate, Report, Table
from lmms_eval_mai.analysis.runs.runs import letter
from lmms_eval_mai.analysis.tables.build import read, report
from lmms_eval_mai.analysis.tables.formats import FORMATS, text


def of_table(table: Table) -> Report:
    return Report((table,))


@pytest.mark.parametrize(
    ("cell", "column", "shown"),
    [
        (None, Column("x", "number", 1, str), ""),
        ("MAI", Column("x", "text", 1, str), "MAI"),
        (12, Column("x", "count", 1, str), "12"),
        (1.25, Column("x", "number", 2, str), "1.25"),
        (0.0004, Column("p", "p", 1, str), "< 0.001"),
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


def test_the_terminal_has_the_summary_first_and_each_note_once_in_100_columns(tmp_path: Path) -> None:
    demo = World("shapes", WORLD.documents, small="/x/lmms_eval_mai/pairs/demo/small", large="demo/large")
    write_all(demo, tmp_path)
    options = "anls_threshold=0.5"
    dataclasses.replace(demo, options={"anls_threshold": 0.5}).write(tmp_path, "mai", time="20260109_000000")
    shown = FORMATS["terminal"](report([tmp_path], ()))
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) == len(set(lines) - {""}) + lines.count("") or len([one for one in lines if "p:" in one]) == 1
    assert [shown.count(one) for one in ("demo/small", "demo/large", options)] == [1, 1, 1]
    assert "  MAI [a] " in shown and "  small-R(S2) " in shown


def test_exits_that_make_a_table_too_wide_stand_below_its_other_columns() -> None:
    exits = [Column(f"exit_{number}", "brief", 1, str) for number in range(8)]
    columns = (
        Column("method", "text", 1, str),
        Column("number of documents", "count", 0, str),
        Column("score", "number", 1, str),
        *exits,
    )
    rows = (("with exits", 20, 91.5, *range(8)), ("alone", 10, 80.0, *[None] * 8))
    table = Table("methods", "Methods", columns, rows)
    lines = FORMATS["terminal"](of_table(table)).splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split() for line in lines[2:4]] == [["with", "exits", "20", "91.5"], ["alone", "10", "80.0"]]
    assert lines[-1].split() == ["with", "exits", *(f"{number}.0" for number in range(8))]
    narrow = dataclasses.replace(table, columns=columns[:4], rows=tuple(row[:4] for row in rows))
    assert FORMATS["terminal"](of_table(narrow)).splitlines()[2].split() == ["with", "exits", "20", "91.5", "0.0"]


def test_each_set_of_options_has_a_letter_of_its_own(tmp_path: Path) -> None:
    for number in range(3):
        world = dataclasses.replace(POPE, options={"anls_threshold": number / 100})
        world.write(tmp_path, "mai", time=f"20260101_0000{number:02d}")
    names, legend = read([tmp_path]).short_names()
    assert {name.rpartition("[")[2] for name in names.values() if name.startswith("MAI")} == {"a]", "b]", "c]"}
    assert len([line for line in legend if line.startswith("[")]) == 3
    assert [letter(number) for number in (0, 25, 26, 53, 701, 702)] == ["a", "z", "aa", "bb", "zz", "aaa"]


def test_markdown_has_all_tables_and_what_is_missing(found: Report) -> None:
    shown = FORMATS["markdown"](found)
    headings = [one for one in shown.split("\n") if one.startswith("#")]
    assert headings == [f"## {table.title}" for table in found.tables]
    bars = Table("x", "X", (Column("a", "text", 1, str),), (("a|b",),))
    assert "a\\|b" in FORMATS["markdown"](of_table(bars))
    assert "\n* POPE: the paper has 9000 documents and these runs 200, so " in shown


def test_csv_and_json_have_one_row_for_each_row_and_one_column_for_each_key(found: Report) -> None:
    shown = json.loads(FORMATS["json"](found))
    assert shown["gaps"] == list(found.gaps) and shown["tables"].keys() == {table.key for table in found.tables}
    name = ("POPE", "MAI 8B + 2B-R")
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
    lines = FORMATS["latex"](of_table(Table("x", "X, %", columns, (("x_1 #{}~^\\", 3, 0.0004),)))).split("\n")
    assert r"\caption{X, \%}" in lines
    assert r"\toprule" in lines and r"a\_b & n & p \\" in lines
    assert lines[lines.index(r"\midrule") + 1].startswith(r"x\_1 \#\{\}")


@pytest.mark.slow
def test_tables_chooses_those_of_the_paper(tmp_path: Path) -> None:
    write_all(pope_world(20), tmp_path)
    summary = ["methods", "comparisons"]
    for tables, keys in (
        ((), []),
        (("10", "6"), ["tables-6-7-14", "table-10"]),
        (("paper",), ["tables-5-13", "tables-6-7-14", "table-8", "table-10", "table-15", "table-11"]),
    ):
        assert [table.key for table in report([tmp_path], tables).tables] == summary + keys
