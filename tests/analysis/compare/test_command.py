"""The command `lmms-eval-mai compare`: its runs on scripted engines beside single ones."""

import json
import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from support import pair
from support.own_command import run_command, run_lmms_eval
from support.pair import Answers, exit_of, written
from support.processes import Command, scripts, strike

from lmms_eval_mai.analysis.runs.folders import read_runs
from lmms_eval_mai.analysis.runs.records import records
from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.runs.setups import Setup
from lmms_eval_mai.analysis.tables.summary import spent
from lmms_eval_mai.method.methods import MAI
from lmms_eval_mai.plugin import task_dir

ROWS = 12
RUNS = ("small/pope_s", "small/pope_r", "large/pope_s", "full_rt/pope_s", "mai/pope_s", "think_first/pope_s")
"""The runs of Table 10 and of the method below, in their order."""
THINK_FIRST = """
- ask: [large.simple, small.think]
- stop: {exit: agree_think, answer: large.simple, agree: [small.think, large.simple]}
- {ask: large.transfer, of: small.think}
- stop: {exit: transfer, answer: large.transfer}
"""
"""The file of a method of the user, whose calls are those of Table 10."""
TIMES = ("queued_s", "ttft_s", "total_s", "started_at")


def arguments(model_args: dict[str, str], output: Path, *more: str) -> list[str]:
    """Return the arguments of the command that makes these runs."""
    method = Path(model_args["small"]).with_name("think_first.yaml")
    if not method.exists():  # a run is made again after a change of its method
        method.write_text(THINK_FIRST)
    given = ",".join(f"{name}={value}" for name, value in model_args.items())
    chosen = ["--benchmarks", "pope", "--tables", "10", "--model_args", given, "--methods", str(method)]
    return ["compare", *chosen, "--output_path", str(output), *more]


def finished_run(folder: Path, *without: str) -> dict[str, Any]:
    """Return the scores of a run, and its samples without the times and some other fields of their calls."""
    (results,) = folder.rglob("*_results.json")
    (samples,) = folder.rglob("*_samples_*.jsonl")
    found = json.loads(results.read_text())
    kept = ("doc_id", "target", "resps", "filtered_resps", "pope_accuracy", "token_counts", "doc_hash")
    lines = [json.loads(line) for line in samples.read_text().split("\n") if line]
    for call in (call for line in lines for call in line["token_counts"][0]["calls"]):
        for name in (*TIMES, *without):
            call.pop(name, None)  # a shared call has no times
    return {
        "model": (found["config"]["model"], found["model_source"], found["config"]["model_args"]),
        "scores": found["results"],
        "samples": [{name: line[name] for name in kept if name in line} for line in lines],
    }


def shared_calls(run: dict[str, Any]) -> tuple[int, int]:
    """Return the number of shared calls of a run, and of all its calls."""
    calls = [call for sample in run["samples"] for call in sample["token_counts"][0]["calls"]]
    return sum(call["shared"] for call in calls), len(calls)


@pytest.fixture(scope="module")
def model_args(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {**scripts(tmp_path_factory.mktemp("scripts"), "pope_s", ROWS, seconds=0.1), "max_open_samples": "2"}


@pytest.fixture(scope="module")
def undisturbed(drawn_data: Path, model_args: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs of Table 10 and of a method of the user, made by one command."""
    folder = tmp_path_factory.mktemp("undisturbed")
    code, text = start(drawn_data, folder, model_args).end()
    assert code == 0, text
    (folder / "log").write_text(text)
    return folder / "out"


def start(data: Path, folder: Path, model_args: dict[str, str]) -> Command:
    given = arguments(model_args, folder / "out")
    return Command(data, folder / "log.txt", *given, name="lmms-eval-mai")


def runs(output: Path) -> dict[str, dict[str, Any]]:
    return {name: finished_run(output / "models" / name) for name in RUNS}


@pytest.mark.slow
def test_one_command_makes_all_runs_of_a_table_and_of_a_file_and_prints_them(undisturbed: Path) -> None:
    found = runs(undisturbed)
    assert {name: shared_calls(run) for name, run in found.items()} == {
        "small/pope_s": (0, 12),
        "small/pope_r": (0, 12),
        "large/pope_s": (0, 12),
        "full_rt/pope_s": (12, 24),
        "mai/pope_s": (36, 36),  # 12 documents: 2 calls each, 8 also think, and 4 of these are transferred
        "think_first/pope_s": (32, 32),
    }
    assert (undisturbed / "calls-0of1.jsonl").read_text().count('"call":') == 48
    written = {file.name for file in undisturbed.iterdir()}
    assert written == {"models", "calls-0of1.jsonl", "report.md", "report.html"}
    text = (undisturbed.parent / "log").read_text()
    assert "models/mai/pope_s" in text and "think_first" in text.split("\nMethods: ")[1]
    assert "\nMethods: " in text and "Table 10" not in text and "Table 10" in (undisturbed / "report.md").read_text()
    assert text.count("small is ready") == 1 and text.count("large is ready") == 1
    assert "mai_cascade method=" not in text  # no table of a single run


@pytest.mark.slow
def test_runs_are_equal_to_those_of_the_printed_single_commands(
    undisturbed: Path, model_args: dict[str, str], in_drawn_data: Path, tmp_path: Path, capsys: Any
) -> None:
    _, text, _ = run_command(capsys, *arguments(model_args, tmp_path / "single", "--dry-run"))
    assert text.splitlines()[-1].startswith("# 6 runs")
    _, papers, _ = run_command(capsys, "compare", "--pair", "demo", "--tables", "10", "--output_path", "x", "--dry-run")
    assert papers.count(",method=mai ") == 6  # all benchmarks of the paper
    commands = [shlex.split(line) for line in text.split("\n") if line.startswith("lmms-eval ")]
    assert len(commands) == len(RUNS) and not (tmp_path / "single").exists()
    for name, command in list(zip(RUNS, commands, strict=True))[-2:]:  # MAI, and the method of the user
        assert run_lmms_eval(capsys, *command[1:])[0] == 0
        # The marks of shared calls differ if other runs were made before.
        single = finished_run(tmp_path / "single" / "models" / name, "shared")
        assert finished_run(undisturbed / "models" / name, "shared") == single
    _, text, _ = run_command(capsys, *arguments(model_args, undisturbed, "--dry-run"))
    assert len(re.findall(r"^# .*, finished$", text, re.MULTILINE)) == len(RUNS)


@pytest.mark.slow
def test_command_that_is_killed_has_the_results_of_an_undisturbed_one(
    undisturbed: Path, model_args: dict[str, str], in_drawn_data: Path, tmp_path: Path, capsys: Any
) -> None:
    """It continues in this process."""
    output = tmp_path / "out"
    process = start(in_drawn_data, tmp_path, model_args).process
    assert strike(process, output, random.Random().randint(40, 80))
    kept = {file: file.stat().st_mtime_ns for file in (output / "models").rglob("*.json*")}
    assert 0 < sum(file.name.endswith("_results.json") for file in kept) < len(RUNS)
    code, _, text = run_command(capsys, *arguments(model_args, output))
    assert code == 0, text
    assert runs(output) == runs(undisturbed)  # with the same marks of shared calls
    assert {file: file.stat().st_mtime_ns for file in kept} == kept  # they were not made again
    assert (output / "calls-0of1.jsonl").read_text().count('"call":') == 48
    assert {file.name for file in output.iterdir()} == {file.name for file in undisturbed.iterdir()}


# --- a task of a user: a parquet file with pictures, and a YAML file with a prompt and functions of its own ---

NAME = "own_shapes"
FILE = task_dir() / "shapes" / "test.parquet"
FUNCTIONS = """
def visual(doc):
    return [doc["image"].convert("RGB")]


def text(doc, lmms_eval_specific_kwargs):
    return doc["question"] + lmms_eval_specific_kwargs["post_prompt"]


def score(doc, results):
    return {"own_right": results[0].rpartition("[[")[2].strip("]").lower() == doc["answer"].lower()}
"""
TASK = f"""
task: {NAME}
dataset_path: parquet
dataset_kwargs: {{data_files: {{test: {FILE}}}}}
test_split: test
output_type: generate_until
doc_to_visual: !function functions.visual
doc_to_text: !function functions.text
doc_to_target: answer
process_results: !function functions.score
generation_kwargs: {{max_new_tokens: 16}}
metric_list: [{{metric: own_right, aggregation: mean, higher_is_better: true}}]
lmms_eval_specific_kwargs: {{default: {{pre_prompt: "", post_prompt: "\\nAnswer in the format: [[answer]]"}}}}
"""


def write_task(folder: Path) -> Path:
    """Write the task, whose questions are those of `shapes`. Returns the folder."""
    folder.mkdir(parents=True)
    (folder / f"{NAME}.yaml").write_text(TASK)
    (folder / "functions.py").write_text(FUNCTIONS)
    return folder


def answers() -> list[Answers]:
    """One document after another leaves MAI at `agree_short`, `agree_think` and `transfer`. The large model is right
    with its thinking, else about two documents of three."""
    made, wrong, other = [], "nothing", "something"
    for number, right in enumerate(parquet.read_table(FILE)["answer"].to_pylist()[:ROWS]):
        short = right if number % 4 else wrong
        small, thought = short if number % 3 == 0 else other, short if number % 3 < 2 else other
        transferred, chance = right if number % 6 else wrong, 0.9 if short == right else 0.1
        made.append(Answers(right, small, short, thought, transferred, right, probability=chance))
    return made


@pytest.mark.slow
def test_on_a_task_of_ones_own_each_method_has_its_own_calls_its_score_and_its_seconds(
    tmp_path: Path, capsys: Any
) -> None:
    written(tmp_path, pair.records(NAME, answers(), seconds=0.01))
    model_args = f"engine=scripted,small={tmp_path}/small.jsonl,large={tmp_path}/large.jsonl"
    task = ("--tasks", NAME, "--include_path", write_task(tmp_path / "tasks"))
    given = ("--limit", ROWS, "--min_confidence", "0.5", "--model_args", model_args)
    output = tmp_path / "out"
    code, _, text = run_command(capsys, "compare", *task, *given, "--output_path", output)
    assert code == 0, text
    found = {}
    for run in Runs.read([output]).select():
        _, method, _ = run.file.relative_to(output).parts[:3]
        calls = finished_run(output / "models" / method / NAME)
        found[method] = (*shared_calls(calls), run.samples.score.sum())
        assert spent(run)["wall_s"]
    assert found == {
        "small": (0, 12, 3),
        "large": (0, 12, 9),
        "large_r": (0, 12, 12),
        "full_rt": (0, 24, 10),
        "mai": (0, 36, 10),  # 12 documents: 2 calls each, 8 also think, and 4 of these are transferred
        "mai_confidence": (0, 16, 10),  # the large model is unsure of 3, and 1 of these is transferred
        "own_thinking": (0, 15, 12),
    }
    assert {file.name for file in output.iterdir()} == {"models", "calls-0of1.jsonl", "report.md", "report.html"}


@pytest.mark.slow
def test_the_files_that_lmms_eval_wrote_are_read_with_exits_images_texts_and_its_score(
    undisturbed: Path, model_args: dict[str, str]
) -> None:
    found = read_runs([undisturbed / "models" / "mai"])
    assert found.gaps == []
    (run,) = found.runs
    assert run.setup == Setup(MAI, model_args["large"], model_args["small"], "R")
    assert list(run.samples.exit) == [exit_of(doc_id) for doc_id in range(ROWS)]
    assert run.samples.images.notna().all()
    total, results = Runs(found.runs).score(run), json.loads(run.file.read_text())["results"]
    assert total is not None and total.value == pytest.approx(100 * results["pope_s"]["pope_f1_score,none"])
    texts = [record for record in records(run.samples_file, run.metrics) if record]
    assert [record.row["exit"] for record in texts] == list(run.samples.exit)
    assert texts[2].question.startswith("Is there a") and texts[2].calls[2]["text"].startswith("I see 2. [[")
