"""`lmms-eval-mai ask`: one question, with every call."""

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.own_command import refusal, run_command
from support.pope_scripts import counts, pope_scripts

pytestmark = pytest.mark.usefixtures("task_manager")  # all of them import lmms-eval's tasks

NO_MODELS = "small=/not/there,large=/not/there"
"""Model arguments with which every start of an engine fails."""
WHY = ("--question", "Why?", "--model_args")


def calls(text: str) -> list[str]:
    """Return the model and the prompt of each printed call."""
    return re.findall(r"^--- (\w+ \w+), at most [\d,]+ tokens$", text, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("doc", "exit", "path"),
    [
        (0, "agree_short", ["small simple", "large simple"]),
        (2, "transfer", ["small simple", "large simple", "small think", "large transfer"]),
    ],
)
def test_document_of_a_task_is_answered_and_scored_as_in_an_evaluation(
    evaluate: Any, write_script: Any, capsys: Any, doc: int, exit: str, path: list[str]
) -> None:
    scripts = pope_scripts(write_script, "pope_s")
    results = evaluate(["pope_s"], {"limit": 3}, **scripts, store="off", log_prompts=True)
    evaluated = counts(results, "pope_s")[doc]
    assert (evaluated["exit"], [f"{call['side']} {call['prompt']}" for call in evaluated["calls"]]) == (exit, path)

    given = ",".join(f"{name}={value}" for name, value in scripts.items())
    code, text, _ = run_command(capsys, "ask", "--tasks", "pope_s", "--doc", str(doc), "--model_args", given)
    assert code == 0
    assert calls(text) == path
    position = 0
    for call in evaluated["calls"]:
        for part in [*call["messages"][0]["content"], call["text"], f"{call['prompt_tokens']} prompt tokens"]:
            position = text.index(part.strip(), position) + 1  # all parts, in this order
    assert f"\nexit: {exit}\n" in text
    assert re.search(r"^score: .*\bpope_accuracy=1\.0, .*the right answer is (yes|no)$", text, re.MULTILINE), text


@pytest.mark.parametrize(
    ("task", "method", "path"),
    [
        ("pope_s", "mai", ["small simple", "large simple", "small think", "large transfer"]),
        ("pope_e_s2", "mai", ["small simple", "large simple", "small explain", "small stage2", "large transfer"]),
        ("pope_r_s2", "large", ["large think", "large stage2"]),
        ("mmmu_val_s", "small", ["small simple"]),
    ],
)
def test_dry_run_prints_the_prompt_of_every_call_and_loads_no_model(
    in_drawn_data: Path, capsys: Any, task: str, method: str, path: list[str]
) -> None:
    code, text, _ = run_command(
        capsys, "ask", "--tasks", task, "--model_args", f"{NO_MODELS},method={method}", "--dry-run"
    )
    assert code == 0
    assert calls(text) == path
    assert text.count("<image ") >= len(path) and " model]" not in text and "score" not in text
    thinking = rf"<text of the {'large' if method == 'large' else 'small'} model, prompt (think|explain)>"
    assert len(re.findall(thinking, text)) == sum(call.endswith(("stage2", "transfer")) for call in path)


def test_dry_run_of_sparse_transfer_shows_the_whole_thinking(capsys: Any) -> None:
    model_args = f"{NO_MODELS},engine=transformers,transfer=sparse,method=full_rt"
    code, text, _ = run_command(capsys, "ask", *WHY, model_args, "--dry-run")
    assert code == 0 and calls(text) == ["small think", "large transfer"]
    assert text.count("<text of the small model, prompt think>") == 1 and "transfer=sparse" in text


def test_own_question_is_asked_with_its_images_and_options(write_script: Any, tmp_path: Path, capsys: Any) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "one.png")
    own = ["--question", "Which colour?", "--image", str(tmp_path / "one.png"), "--option", "red", "--option", "blue"]
    code, text, _ = run_command(capsys, "ask", *own, "--model_args", NO_MODELS, "--dry-run")
    assert code == 0
    assert calls(text) == ["small simple", "large simple", "small think", "large transfer"]
    assert text.count("<image 30x20>\nWhich colour?\nA. red\nB. blue\n") == 4

    numbers = re.compile(r"document (\d+), large")
    script = write_script("large", [])
    one_model = ["--model_args", f"engine=scripted,method=large,large={script}"]
    code, _, error = run_command(capsys, "ask", *own, *one_model)
    found = numbers.search(error)
    assert code == 1 and found is not None, error
    answer = {"prompt": "simple", "text": "I see [[B]]", "answer_logprob": -0.10536}
    write_script("large", [{"task": "ask", "doc_id": int(found[1]), **answer}])
    code, text, _ = run_command(capsys, "ask", *own, *one_model)
    assert code == 0
    assert "finish reason stop, probability of the answer 0.900\n" in text
    assert "[large model]\nI see [[B]]\n" in text and text.endswith("exit: large\nanswer: B\n")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["--tasks", "pope_s", "--image", "a.png"], "--image"),
        (["--tasks", "pope_s", "--doc", "-1"], "--doc -1"),
        (["--tasks", "pope_r_s2", "--model_args", "method=full_rt"], "method=full_rt"),
        (["--tasks", "pope_s", "--gen_kwargs", "temprature=1"], "temprature"),
        ([*WHY, "max_open_sample=1"], "max_open_sample"),
        ([*WHY, "decoding=official,pair=qwen3vl-2b-8b", "--gen_kwargs", "temperature=0"], "temperature=0"),
        ([*WHY, "transfer=sparse"], "large_engine=vllm"),
        (["--question", "Why?", "--image", "not_there.png"], "not_there.png"),
        (["--question", "Why?", "--option", "red"], "option"),
        pytest.param(["--tasks", "pope_x"], "pope_x", marks=pytest.mark.long),  # all tasks of lmms-eval are read
    ],
)
def test_wrong_argument_ends_with_one_sentence_and_code_1(
    in_drawn_data: Path, capsys: Any, arguments: list[str], option: str
) -> None:
    assert option in refusal(capsys, "ask", *arguments, "--dry-run")
