"""`lmms-eval-mai attention`: its arguments, and the scores of its answers."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.attention import is_image
from support.own_command import run_command
from support.pope_scripts import gold_of

from lmms_eval_mai.cli.attention import ScoredDocuments
from lmms_eval_mai.reports.build import report
from lmms_eval_mai.run import presets

pytestmark = pytest.mark.usefixtures("task_manager")  # most of them import lmms-eval's tasks

DOCUMENTS = 3
DEMO = ["--pair", "demo", "--tasks", "shapes_r", "--limit", str(DOCUMENTS)]
DEMO += ["--model_args", "engine=transformers,dtype=float32"]


def test_answers_are_scored_by_the_scorer_and_the_metrics_of_the_task(in_drawn_data: Path) -> None:
    documents = ScoredDocuments("pope_r", 6)
    assert documents.numbers == list(range(6))
    gold = gold_of("POPE", "test")[:6]
    texts = {number: f"So it is [[{answer.title()}]]" for number, answer in enumerate(gold)}
    found = documents.score("full", texts)
    assert found.scores == [1.0] * 6 and found.metrics["pope_accuracy"] == 1
    wrong = documents.score("full", {0: texts[0], 4: "[[perhaps]]"})
    assert wrong.scores == [1.0, 0.0] and wrong.metrics["pope_accuracy"] == 0.5


@pytest.mark.slow
def test_answers_of_another_task_are_read_from_their_brackets_except_short_ones(in_drawn_data: Path) -> None:
    documents = ScoredDocuments("pope", 1)
    (gold,) = gold_of("POPE", "test")[:1]
    assert documents.score("full", {0: f"I look. [[{gold}]]"}).scores == [1.0]
    assert documents.score("simple", {0: gold}).scores == [1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give --tasks TASKS, or --run FOLDER."),
        (["--tasks", "shapes_r", "--limit", "0"], "--limit 0 is invalid"),
        (["--tasks", "shapes_r_s2", "--limit", "1"], "mode=transfer cannot run shapes_r_s2"),
        (["--tasks", "shapes_r", "--layers", "1,x"], "--layers 1,x is invalid"),
        ([*DEMO, "--table9", "--layers", "1,99"], "--layers 99 is invalid: the large model has the layers 1 to "),
        ([*DEMO[:-1], "sparse_layer=4"], "sparse_layer=4 has no effect here, because --layers chooses the layers of "),
        ([*DEMO[:-1], "mode=cascade"], "mode=cascade has no effect here, because the analysis sets it itself. Leave"),
        ([*DEMO, "--layers", "1"], "--layers 1 has no effect without --table9"),
        ([*DEMO[:-1], "sparse_delta=2"], "sparse_delta=2 is invalid"),
        ([*DEMO[:-2], "--model_args", "large=http://localhost:1/v1"], "large_engine=openai"),
    ],
)
def test_wrong_argument_ends_with_one_sentence_before_an_engine_starts(
    tmp_path: Path, capsys: Any, arguments: list[str], message: str
) -> None:
    code, text, error = run_command(capsys, "attention", "--output_path", str(tmp_path), *arguments)
    assert code == 1 and "Figures and tables" not in text
    (line,) = [line for line in error.splitlines() if line.startswith("lmms-eval-mai: ")]
    assert message in line and "Traceback" not in error and "starting" not in error
    assert "selects tokens" not in error  # the analysis uses many layers


@pytest.mark.slow
def test_command_writes_all_figures_and_tables_and_repeats_nothing_when_it_runs_again(
    tmp_path: Path, capsys: Any
) -> None:
    model = json.loads((presets.FOLDER / "demo" / "large" / "config.json").read_text())
    layers = model["text_config"]["num_hidden_layers"]
    parts = ["--figures", "--table9", "--output_path", str(tmp_path)]
    code, first, error = run_command(capsys, "attention", *DEMO, *parts)
    assert code == 0, error
    folder = tmp_path / "shapes_r"
    images = [f"{name}{kind}" for name in ("figure3", "figure4", "figure5", "table9") for kind in (".svg", ".png")]
    assert all(is_image(folder / name) for name in images)
    rows = pd.read_parquet(folder / "attention.parquet")
    assert set(rows["table"]) == {
        *("table9", "table9_documents", "figure3", "figures4_5", "table16", "table16_document"),
    }

    table9 = rows[rows["table"] == "table9"]
    full = table9[table9["method"] == "full"].iloc[0]
    sparse, random = (table9[table9["method"] == name].set_index("layer") for name in ("sparse", "random"))
    assert len(table9) == 2 + 3 * layers and len(sparse) == layers
    assert sparse["kept_tokens"].between(0, full["kept_tokens"], inclusive="neither").all()
    assert (sparse["prompt_tokens"] < full["prompt_tokens"]).all()
    assert (sparse["prefilled_tokens"] > full["prefilled_tokens"]).all()
    assert (random["kept_tokens"] == sparse["kept_tokens"]).all()

    # The mean over heads that the engine scored, and the single heads, are the same attention.
    table16 = rows[(rows["table"] == "table16") & (rows["thinking"] == "small") & (rows["rank"] == 1)]
    assert table16["kept_tokens"].tolist() == pytest.approx(sparse["kept_tokens"].tolist())
    assert rows[rows["table"] == "figures4_5"]["total_weight"].between(0, 1, inclusive="neither").all()

    tables = report([tmp_path]).tables
    assert [table.key for table in tables] == ["table-9-attention-shapes_r", "table-16-shapes_r"]
    assert [len(table.rows) for table in tables] == [2 + 3 * layers, 2 * layers]

    (store,) = (tmp_path / "store").glob("*.jsonl")
    lines = [line for line in store.read_text().splitlines() if '"call"' in line]
    written = {path: path.stat().st_mtime_ns for path in (folder / "documents").iterdir()}
    assert len(written) == DOCUMENTS
    code, second, error = run_command(capsys, "attention", *DEMO, "--output_path", str(tmp_path))
    assert code == 0 and all(line in first for line in second.splitlines()), error
    assert [line for line in store.read_text().splitlines() if '"call"' in line] == lines
    assert {path: path.stat().st_mtime_ns for path in (folder / "documents").iterdir()} == written
    assert len(pd.read_parquet(folder / "attention.parquet")) == len(rows)
