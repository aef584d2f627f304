"""`lmms-eval-mai attention --run`: the thinking of a finished run."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from datasets import load_dataset
from support.own_command import run_command

from lmms_eval_mai.cli import finished_run
from lmms_eval_mai.cli.attention import ScoredDocuments
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.agreement import without_answer
from lmms_eval_mai.run import presets
from lmms_eval_mai.run.config import parse

pytestmark = pytest.mark.usefixtures("task_manager")

THINKING = {1: "The red cross is on the left. [[red cross]]", 4: "I look at row 2. [[B]]"}


def write_run(folder: Path, samples: Iterable[dict[str, Any]] | None, task: str = "shapes_r", **recorded: Any) -> None:
    """Write the files of a run as lmms-eval does. `samples`: None: not logged."""
    folder.mkdir(parents=True)
    config = {"model": "mai_cascade", "model_args": "pair=demo,mode=small", "gen_kwargs": "", **recorded}
    results = {"config": config, "results": {task: {}}, "configs": {}, "n-samples": {}}
    (folder / "20261122_101500_results.json").write_text(json.dumps(results))
    if samples is not None:
        lines = "".join(json.dumps(sample) + "\n" for sample in samples)
        (folder / f"20261122_101500_samples_{task}.jsonl").write_text(lines)


def sample(doc_id: int, text: str, side: str = "small", stage: str = "think", target: str = "x") -> dict[str, Any]:
    call = {"side": side, "stage": stage, "text": text, "prompt_tokens": 9, "output_tokens": 4}
    call |= {"total_s": 0.1, "finish_reason": "stop"}
    return {"doc_id": doc_id, "target": target, "score": 1.0, "token_counts": [{"exit": "transfer", "calls": [call]}]}


def test_arguments_of_the_command_have_priority_over_those_of_the_run(tmp_path: Path) -> None:
    recorded = "pair=demo,mode=transfer,transfer=sparse,sparse_layer=2,engine=transformers,store=off"
    write_run(tmp_path / "run", [sample(0, "a")], model_args=recorded)
    run = finished_run.read(tmp_path / "run")
    assert run.model_arguments({"pair": "demo", "dtype": "float32", "engine": "vllm"}) == {
        "pair": "demo",
        "engine": "vllm",
        "dtype": "float32",
    }


def test_run_of_one_model_needs_the_name_of_the_other_model(tmp_path: Path) -> None:
    small = str(presets.FOLDER / "demo" / "small")
    write_run(tmp_path / "run", [sample(0, "a")], model_args=f"small={small},mode=small")
    run = finished_run.read(tmp_path / "run")
    with pytest.raises(ArgumentError, match="names no large model"):
        run.model_arguments({})
    run.check(parse(run.model_arguments({"pair": "demo"})))


@pytest.mark.parametrize(
    ("recorded", "samples", "arguments", "message"),
    [
        ({}, None, [], "were not logged. Run it again with --log_samples"),
        ({"model": "vllm"}, [sample(0, "a")], [], "is not the results file of a run of mai_cascade"),
        ({}, [sample(0, "a")], ["--pair", "qwen3vl-2b-8b"], "and the arguments name Qwen/Qwen3-VL-2B-Instruct"),
        ({}, [sample(0, "a")], ["--model_args", "think=E"], "think=E is given"),
        ({}, [sample(0, "a")], ["--tasks", "shapes_e"], "has no samples of shapes_e, only of shapes_r"),
        ({}, [sample(0, "a", stage="short")], [], "has no thinking of the small model (mode=small)"),
        ({"model_args": "pair=demo,mode=large"}, [sample(0, "a")], [], "has no thinking of the large model"),
        ({}, [sample(0, "a")], ["--gen_kwargs", "temperature=1"], "--gen_kwargs has no effect with --run"),
        ({}, [sample(0, "a")], [], "Document 0 of shapes_r is not the one of the run"),
        ({}, [sample(10**5, "a")], [], "Document 100000 of shapes_r is not the one of the run"),
    ],
)
def test_run_that_cannot_be_used_ends_with_one_sentence_before_an_engine_starts(
    tmp_path: Path, capsys: Any, recorded: Any, samples: Any, arguments: list[str], message: str
) -> None:
    write_run(tmp_path / "run", samples, **recorded)
    code, _, error = run_command(
        capsys, "attention", "--run", str(tmp_path / "run"), "--output_path", tmp_path / "out", *arguments
    )
    (line,) = [line for line in error.splitlines() if line.startswith("lmms-eval-mai: ")]
    assert code == 1 and message in line and "Traceback" not in error and "starting" not in error


def test_folder_must_have_one_run_that_can_be_read(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(ArgumentError, match="has no run that can be used"):
        finished_run.read(tmp_path)
    write_run(tmp_path / "a", [sample(0, "a")])
    write_run(tmp_path / "b", [sample(0, "a")])
    with pytest.raises(ArgumentError, match="there are 2 runs"):
        finished_run.read(tmp_path)
    (file,) = (tmp_path / "a").glob("*.json")
    assert finished_run.read(file).results == file
    (samples,) = (tmp_path / "a").glob("*.jsonl")
    samples.write_text(samples.read_text()[:9])
    with pytest.raises(ArgumentError, match="has no thinking"):
        finished_run.read(file).thinking("shapes_r", None)
    assert "cannot be read. Did the run break off?" in capsys.readouterr().err


@pytest.mark.slow
def test_large_model_reads_the_logged_thinking_and_the_small_model_does_not_start(tmp_path: Path, capsys: Any) -> None:
    documents = ScoredDocuments("shapes_r", 5)
    logged = [sample(number, text, target=documents.target(number)) for number, text in THINKING.items()]
    write_run(tmp_path / "run", logged, model_args="pair=demo,mode=small,engine=transformers,dtype=float32")
    output = tmp_path / "out"
    code, _, error = run_command(
        capsys, "attention", "--run", str(tmp_path / "run"), "--output_path", str(output), "--figures"
    )
    assert code == 0, error
    assert "starting large=" in error and "starting small=" not in error
    settings = json.loads((output / "shapes_r" / "settings.json").read_text())
    assert settings["run"] == "20261122_101500_results.json" and settings["documents"] == 2
    found = {}
    for path in (output / "shapes_r" / "documents").iterdir():
        (row,) = (row for row in pq.read_table(path).to_pylist() if row["thinking"] == "small")
        found[row["doc_id"]] = "".join(row["tokens"])
    assert found == {number: without_answer(text) for number, text in THINKING.items()}


def test_right_answers_that_are_lists_are_compared_as_lmms_eval_writes_them(in_drawn_data: Path) -> None:
    (first,) = load_dataset("lmms-lab-encoder/DocVQA", "InfographicVQA", split="validation")["answers"][:1]
    documents = ScoredDocuments("infovqa_val_r", 2, {}, None)
    documents.keep({0: str(first)})
    assert isinstance(first, list) and documents.numbers == [0]
    with pytest.raises(ArgumentError, match="Document 0 of infovqa_val_r is not the one of the run"):
        documents.keep({0: str([*first, "x"])})
