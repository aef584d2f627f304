"""`lmms-eval-mai attention`: its arguments, and the scores of its answers."""

from pathlib import Path
from typing import Any

import pytest
from support.pope_scripts import gold_of

from lmms_eval_mai import cli
from lmms_eval_mai.attention.table9 import FULL, SIMPLE
from lmms_eval_mai.cli.attention import model_arguments
from lmms_eval_mai.cli.task_documents import TaskDocuments
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.run.config import parse

pytestmark = pytest.mark.usefixtures("task_manager")  # most of them import lmms-eval's tasks

DOCUMENTS = 3
DEMO = ["--pair", "demo", "--tasks", "shapes_r", "--limit", str(DOCUMENTS)]
DEMO += ["--model_args", "engine=transformers,dtype=float32"]


def attention(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    """Return the exit code of the command, and what it prints to standard output and to standard error."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main(["attention", *arguments])
    printed = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, printed.out, printed.err


def test_answers_are_scored_by_the_scorer_and_the_metrics_of_the_task(in_drawn_data: Path) -> None:
    documents = TaskDocuments("pope_r", 6, {}, None)
    assert documents.numbers == list(range(6))
    gold = gold_of("POPE", "test")[:6]
    texts = {number: f"So it is [[{answer.title()}]]" for number, answer in enumerate(gold)}
    found = documents.score(FULL, texts)
    assert found.scores == [1.0] * 6 and found.metrics["pope_accuracy"] == 1
    wrong = documents.score(FULL, {0: texts[0], 4: "[[perhaps]]"})
    assert wrong.scores == [1.0, 0.0] and wrong.metrics["pope_accuracy"] == 0.5


def test_answers_of_another_task_are_read_from_their_brackets_except_short_ones(in_drawn_data: Path) -> None:
    documents = TaskDocuments("pope", 1, {}, None)
    (gold,) = gold_of("POPE", "test")[:1]
    assert documents.score(FULL, {0: f"I look. [[{gold}]]"}).scores == [1.0]
    assert documents.score(SIMPLE, {0: gold}).scores == [1.0]


def test_run_is_a_sparse_transfer_with_a_journal_in_the_folder_of_the_results() -> None:
    config = parse(model_arguments("demo", {"sparse_delta": 0.9}, Path("out")))
    assert (config.mode, config.transfer, config.sparse_delta) == ("transfer", "sparse", 0.9)
    assert config.journal == "out/journal"
    with pytest.raises(ArgumentError, match="mode=cascade has no effect here"):
        model_arguments("demo", {"mode": "cascade"}, Path("out"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "shapes_r", "--limit", "0"], "--limit 0 is invalid"),
        (["--tasks", "shapes_x"], "shapes_x is unknown to lmms-eval. Did you mean shapes_"),
        (["--tasks", "shapes_r_s2", "--limit", "1"], "mode=transfer cannot run shapes_r_s2"),
        (["--tasks", "shapes_r", "--layers", "1,x"], "--layers 1,x is invalid"),
        ([*DEMO, "--table9", "--layers", "1,99"], "--layers 99 is invalid: the large model has the layers 1 to "),
        ([*DEMO[:-1], "sparse_layer=4"], "sparse_layer=4 has no effect here"),
        ([*DEMO[:-1], "sparse_delta=2"], "sparse_delta=2 is invalid"),
        ([*DEMO[:-2], "--model_args", "large=http://localhost:1/v1"], "large_engine=openai"),
    ],
)
def test_wrong_argument_ends_with_one_sentence_before_an_engine_starts(
    tmp_path: Path, capsys: Any, arguments: list[str], message: str
) -> None:
    code, text, error = attention(capsys, "--output_path", str(tmp_path), *arguments)
    assert code == 1 and "Figures and tables" not in text
    (line,) = [line for line in error.splitlines() if line.startswith("lmms-eval-mai: ")]
    assert message in line and "Traceback" not in error and "starting" not in error
