"""`lmms-eval-mai ask`: one question, with every call."""

import re
from pathlib import Path
from typing import Any

from PIL import Image
from support.own_command import run_command
from support.pair import written

NO_MODELS = "small=/not/there,large=/not/there"
"""Model arguments with which every start of an engine fails."""
ALL_CALLS = ["small simple", "large simple", "small think", "large transfer"]


def calls(text: str) -> list[str]:
    """Return the model and the prompt of each printed call."""
    return re.findall(r"^--- (\w+ \w+), at most [\d,]+ tokens$", text, re.MULTILINE)


def test_question_is_asked_with_its_images_and_options(tmp_path: Path, capsys: Any) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "one.png")
    own = ["--question", "Which colour?", "--image", str(tmp_path / "one.png"), "--option", "red", "--option", "blue"]
    question = "<image 30x20>\nWhich colour?\nA. red\nB. blue\n"
    code, text, _ = run_command(capsys, "ask", *own, "--model_args", NO_MODELS, "--dry-run")
    assert code == 0 and calls(text) == ALL_CALLS and text.count(question) == 4
    assert text.count("<text of the small model, prompt think>") == 1 and " model]" not in text

    record = {"task": "ask", "doc_id": 0}
    thinking = {"prompt": "think", "text": "It looks red. [[A]]"}
    small = [{**record, "prompt": "simple", "text": "[[A]]"}, {**record, **thinking}]
    short = {"prompt": "simple", "text": "I see [[B]]", "answer_logprob": -0.10536}
    large = [{**record, **short}, {**record, "prompt": "transfer", "text": "[[B]]"}]
    written(tmp_path, {"small": small, "large": large})
    models = f"engine=scripted,small={tmp_path}/small.jsonl,large={tmp_path}/large.jsonl"
    code, text, _ = run_command(capsys, "ask", *own, "--model_args", models)
    assert code == 0 and calls(text) == ALL_CALLS and text.count(question) == 4
    assert text.count("It looks red.") == 2  # what one call answers, and a part of the next prompt
    assert "[large model]\nI see [[B]]\n" in text and "finish reason stop, probability of the answer 0.900\n" in text
    assert "parsed answer: small.think 'A'\n" in text and text.endswith("exit: transfer\nanswer: B\n")
