"""The statistics and the table of the demo, compared with counts made by hand."""

import json
from pathlib import Path
from typing import Any

import demo_table
import pytest
from demo_figures import Harm, gain, harm, wilson


def test_wilsons_interval_equals_the_textbooks() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def test_a_gain_is_positive_if_the_first_method_is_better_and_uses_the_pairs() -> None:
    better, worse = [True] * 80 + [False] * 20, [True] * 60 + [False] * 40
    difference, low, high = gain(better, worse)
    assert (difference, gain(worse, better)[0]) == (20.0, -20.0)
    assert 0 < low < 20 < high
    # With the same shares but right answers on different documents, the interval is wider.
    apart = gain(better, [False] * 40 + [True] * 60)
    assert apart[0] == 20.0 and apart[2] - apart[1] > high - low


def test_equal_methods_have_no_gain_but_an_interval() -> None:
    difference, low, high = gain([True] * 50, [True] * 50)
    assert difference == 0 and low < 0 < high


def test_harm_counts_only_transferred_documents() -> None:
    transferred = [True, True, True, True, True, False, False]
    right = [True, False, True, False, True, False, True]
    short_right = [True, True, False, False, True, True, False]
    assert harm(transferred, right, short_right) == Harm(broken=1, was_right=3, rescued=1, was_wrong=2)


# --- the table of make demo -----------------------------------------------------------------------------------


def call(side: str, stage: str, answer: str, tokens: int = 4) -> dict[str, Any]:
    return {"side": side, "stage": stage, "text": f"[[{answer}]]", "output_tokens": tokens}


def record(doc_id: int, exit: str, right: bool, *calls: dict[str, Any]) -> dict[str, Any]:
    counts = [{"exit": exit, "calls": list(calls)}]
    return {"doc_id": doc_id, "target": "3", "exact_match": float(right), "token_counts": counts}


def write(folder: Path, seconds: float, records: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    (folder / "1_samples_shapes_s.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    (folder / "1_results.json").write_text(json.dumps({"throughput": {"total_elapsed_time": seconds}}))
    return folder


@pytest.fixture
def mai(tmp_path: Path) -> Path:
    short = (call("small", "short", "2"), call("large", "short", "3"))
    records = [
        record(0, "agree_short", True, call("small", "short", "3."), call("large", "short", "3")),
        record(1, "agree_think", True, *short, call("small", "think", "3", 50)),
        record(2, "transfer", False, *short, call("small", "think", "2", 60), call("large", "transfer", "2")),
    ]
    return write(tmp_path / "mai", 1.5, records)


def full_rt(folder: Path, documents: int) -> Path:
    calls = (call("small", "think", "3", 70), call("large", "transfer", "3", 5))
    return write(folder, 2.5, [record(i, "transfer", True, *calls) for i in reversed(range(documents))])


def show(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    monkeypatch.setattr("sys.argv", ["demo_table.py", *map(str, folders)])
    demo_table.main()


def test_the_table_of_the_demo_sums_the_logged_samples(
    mai: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show(monkeypatch, mai, full_rt(tmp_path / "rt", 3))
    printed = capsys.readouterr().out
    table = [[cell.strip() for cell in line.split("|")] for line in printed.splitlines() if line.startswith("|")]
    assert {cells[1]: (cells[2], *cells[4:-1]) for cells in table[2:]} == {
        "small S": ("33.3", "12", "0", ""),
        "large S": ("100.0", "0", "12", ""),
        "Full RT": ("100.0", "210", "15", "2.5"),
        "MAI": ("66.7", "122", "16", "1.5"),
    }
    assert "agree_short 33.3%, agree_think 33.3%, transfer 33.3%" in printed


def test_the_figure_of_the_demo_has_bars_in_proportion_to_the_table(
    mai: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show(monkeypatch, mai, full_rt(tmp_path / "rt", 3))
    lines = capsys.readouterr().out.splitlines()
    accuracy, tokens = (
        lines.index("accuracy %"),
        next(i for i, line in enumerate(lines) if line.startswith("output tok")),
    )
    bars = [(line.split()[-1], line.count("░"), line.count("█")) for line in lines[accuracy + 1 : tokens]]
    assert bars == [("33.3", 0, 12), ("100.0", 0, 36), ("100.0", 0, 36), ("66.7", 0, 24)]
    bars = [(line.split()[-1], line.count("░"), line.count("█")) for line in lines[tokens + 1 : tokens + 5]]
    assert bars == [("4.0", 2, 0), ("4.0", 0, 2), ("75.0", 34, 2), ("46.0", 20, 3)]


def test_runs_that_cannot_be_compared_are_refused(mai: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    three, two, empty = full_rt(tmp_path / "rt", 3), full_rt(tmp_path / "two", 2), tmp_path / "none"
    for folders, words in (
        ((three, mai), "not from a run with mode=cascade"),
        ((mai, mai), "not from a run with mode=transfer"),
        ((mai, two), r"have different documents \(3 and 2 of them\)"),
        ((mai, empty), "contains no samples of shapes_s"),
    ):
        with pytest.raises(SystemExit, match=words):
            show(monkeypatch, *folders)
