"""A report as Markdown, CSV, LaTeX and JSON."""

import csv
import json
from pathlib import Path

import pytest
from support.folders import POPE

from lmms_eval_mai.reports.build import report
from lmms_eval_mai.reports.formats import FORMATS, against_paper, text
from lmms_eval_mai.reports.report import Column, Estimate, Of, Report, Table
from lmms_eval_mai.reports.report import table as make_table


def of_table(table: Table) -> Report:
    return Report((), (table,), (), ())


@pytest.mark.parametrize(
    ("cell", "column", "shown"),
    [
        (None, Column("x"), ""),
        ("MAI", Column("x", "text"), "MAI"),
        (12, Column("x", "count"), "12"),
        (1.25, Column("x", digits=2), "1.25"),
        (0.0004, Column("p", "p"), "< 0.001"),
        (0.0456, Column("p", "p"), "0.046"),
        (Estimate(89.44, 9000, 88.71, 90.02), Column("x"), "89.4 (88.7 to 90.0)"),
        (Estimate(89.44, 9000), Column("x", digits=2), "89.44"),
    ],
)
def test_cells_are_shown_with_their_interval(cell: Estimate | float | str | None, column: Column, shown: str) -> None:
    assert text(cell, column) == shown


def test_markdown_has_claims_tables_differences_from_the_paper_runs_and_gaps(found: Report) -> None:
    shown = FORMATS["markdown"](found)
    assert found.claims and shown.startswith("".join(f"* {claim}\n" for claim in found.claims))
    headings = [one for one in shown.split("\n") if one.startswith("#")]
    assert "## Table 10: multi-agent inference (MAI)" in headings
    assert "### Table 10: multi-agent inference (MAI): difference from the paper" in headings
    assert headings[-2:] == ["## Runs", "## What is missing, and doubts about the input"]
    assert shown.count("20260101_000000_results.json") == 1
    bars = Table("x", "X", (Column("a", "text"),), (("a|b",),))
    assert "a\\|b" in FORMATS["markdown"](of_table(bars))
    assert "\n* POPE: the paper has 9000 documents and these runs 200, so " in shown


def test_csv_has_one_line_for_each_number_with_the_papers(found: Report) -> None:
    lines = list(csv.DictReader(FORMATS["csv"](found).splitlines()))
    assert None not in {key for one in lines for key in one} | {value for one in lines for value in one.values()}
    (one,) = [
        line for line in lines
        if (line["table"], line["row"], line["column"]) == ("table-10", "POPE, MAI 8B + 2B-R", "MAI")
    ]  # fmt: skip
    cell = found.table("table-10").rows[0][9]
    assert isinstance(cell, Estimate)
    assert (float(one["value"]), float(one["low"]), float(one["paper"])) == (cell.value, cell.low, 89.4)
    assert one["source"] == "Table 10 (Section 5.4), POPE, MAI"
    assert float(one["difference"]) == cell.value - 89.4


def test_text_columns_after_a_number_are_in_the_csv() -> None:
    columns = (Column("layer", "text"), Column("n", "count"), Column("tokens", "text"))
    lines = csv.DictReader(FORMATS["csv"](of_table(Table("x", "X", columns, (("12", 3, '"the", "a"'),)))).splitlines())
    found = [(one["row"], one["column"], one["value"]) for one in lines]
    assert found == [("12", "n", "3"), ("12", "tokens", '"the", "a"')]


def test_differences_from_the_paper_say_how_many_documents_must_differ() -> None:
    exact = Estimate(100 * 8507 / 9000, 9000, paper=94.52, source="Table 10")  # the paper's own 8,507 of 9,000
    rows = (("ChartQA", Estimate(89.7, 2500, paper=89.4)), ("b", Estimate(50, 2500)), ("POPE", exact))
    rows += (("ChartQA", Estimate(89.7, 250, paper=89.4)),)  # other documents than the paper's
    compared = against_paper(Table("x", "X", (Column("method", "text"), Column("score", "percent")), rows))
    assert compared is not None and compared.columns[-1].title == "documents that differ"
    assert compared.rows[0] == ("ChartQA", "score", 2500, 89.7, 89.4, pytest.approx(0.3), 7)  # 0.25 beyond the rounding
    assert [(row[0], row[-1]) for row in compared.rows[1:]] == [("POPE", 0), ("ChartQA", None)]


def test_latex_has_a_table_environment_for_each_table_and_escapes_special_characters(found: Report) -> None:
    shown = FORMATS["latex"](found)
    compared = [table for table in found.tables if list(table.compared())]
    assert shown.count(r"\begin{tabular}") == shown.count(r"\end{tabular}") == len(found.tables) + len(compared)
    columns = (Column("a_b", "text"), Column("n", "count"), Column("p", "p"))
    table = Table("x", "100% & more", columns, (("x_1 #{}~^\\", 3, 0.0004),), ("50%",))
    lines = FORMATS["latex"](of_table(table)).split("\n")
    assert lines[1:7] == [
        r"\caption{100\% \& more}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"a\_b & n & p \\",
        r"\midrule",
        r"x\_1 \#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{} & 3 & \textless{} 0.001 \\",
    ]
    assert r"\par 50\%" in lines


def test_json_has_the_whole_report_with_the_differences_and_the_data_of_the_figures(found: Report) -> None:
    shown = json.loads(FORMATS["json"](found))
    assert shown["claims"] == list(found.claims) and shown["gaps"] == list(found.gaps)
    (table,) = [one for one in shown["tables"] if one["key"] == "table-10"]
    assert [one["title"] for one in table["columns"]][:3] == ["benchmark", "method", "n"]
    cell = table["rows"][0][9]
    assert cell["paper"] == 89.4 and cell["difference"] == cell["value"] - 89.4
    assert {one["kind"] for one in shown["figures"]} == {"points", "flow", "curve", "reliability"}
    assert [one["used"] for one in shown["runs"]] == [True] * 9


def test_notes_about_a_benchmark_are_below_tables_that_are_about_it() -> None:
    columns = [Of("benchmark", "text", 0, str)]
    notes = ("Always.", ("POPE", "F1."), ("MMMU", "A guess."))
    (made,) = make_table("x", "X", columns, ["shapes", "POPE"], notes)
    assert made.notes == ("Always.", "F1.")
    assert list(make_table("x", "X", columns, [], notes)) == []


# --- figures ------------------------------------------------------------------------------------------


def test_flow_counts_the_documents_by_exit(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade")
    figures = {one.kind: one.data for one in report([tmp_path]).figures}
    assert [(one["source"], one["target"], one["documents"], one["right"]) for one in figures["flow"]] == [
        ("documents", "agree_short", 1, 1),
        ("documents", "disagree", 3, 2),
        ("disagree", "agree_think", 1, 1),
        ("disagree", "transfer", 2, 1),
    ]


def test_points_have_score_interval_and_cost_of_each_method(found: Report) -> None:
    (figure,) = [one for one in found.figures if one.kind == "points"]
    points = {one["method"]: one for one in figure.data}
    assert len(points) == 9
    full_rt = points["Full RT 8B + 2B-R"]
    assert [full_rt[name] for name in ("small_tokens", "large_tokens", "tokens", "compute")] == [100, 5, 105, None]
    assert full_rt["low"] < full_rt["score"] < full_rt["high"]
    assert full_rt["wall_s"] == 9 / 200
