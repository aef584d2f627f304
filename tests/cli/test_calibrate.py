"""`lmms-eval-mai calibrate`: the cheapest threshold that keeps its promise, or a sentence."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.folders import Answers, World
from support.own_command import refusal, run_command

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.confidence import NEVER
from lmms_eval_mai.run.config import parse

RIGHT = Answers("red", "red", "red", "red", "red")
GUESS = Answers("red", "blue", "blue", "red", "red")
"""Both short answers are the same wrong guess, and thinking helps."""


def world(number: int, probabilities: Any = None) -> World:
    """Return documents of which 20% are shared guesses. Their probabilities are below 0.6, and those of others above
    0.7, unless `probabilities` are given."""
    random = np.random.default_rng(0)
    documents = []
    for index in range(number):
        one, least = (GUESS, 0.2) if index % 5 == 0 else (RIGHT, 0.7)
        found = least + random.random() * (0.4 if one is GUESS else 0.29)
        documents.append(replace(one, probability=found if probabilities is None else probabilities[index]))
    return World("shapes", documents)


def calibrate(folder: Path, made: World, capsys: Any, *options: str) -> tuple[int, str, str]:
    made.write(folder / "mai", "cascade")
    made.write(folder / "rt", "transfer")
    return run_command(capsys, "calibrate", folder, "--output", folder / "file.json", *options)


def test_the_cheapest_threshold_that_keeps_the_promise_is_written(
    tmp_path: Path, capsys: Any, task_manager: Any
) -> None:
    confident = replace(world(1000), verify="confidence", min_confidence=0.9)  # adds nothing to the other cascade
    confident.write(tmp_path / "rt", "cascade", time="20260102_000000", model_args="verify=confidence")
    code, out, _ = calibrate(tmp_path, world(1000), capsys)
    assert code == 0, out
    file = tmp_path / "file.json"
    found = json.loads(file.read_text())
    assert 0.5 <= found["thresholds"]["shapes"] <= 0.6
    assert (found["verify"], found["documents"]) == ("confidence", {"shapes": 1000})
    assert found["pooled"] == found["thresholds"]["shapes"]
    assert f"verify=confidence,min_confidence={file}" in out and "at most 1 point below that of Full RT" in out
    given = {"engine": "scripted", "small": "a", "large": "b", "verify": "confidence", "min_confidence": str(file)}
    check = parse(given).first_check()
    assert check.threshold("shapes") == found["thresholds"]["shapes"]
    assert check.threshold("pope") == found["pooled"]
    refused = {**found, "pooled": None, "thresholds": {}}
    file.write_text(json.dumps(refused))
    assert {parse(given).first_check().threshold(name) for name in ("shapes", "pope")} == {NEVER}
    file.write_text(json.dumps(found))
    assert parse({**given, "verify": "agreement", "min_confidence": None}).first_check().verify == "agreement"
    with pytest.raises(ArgumentError, match="has the thresholds of verify=confidence"):
        parse({**given, "verify": "both"})


def test_useless_probabilities_choose_the_safest_thresholds(tmp_path: Path, capsys: Any, task_manager: Any) -> None:
    random = np.random.default_rng(1).random(1000)
    code, out, _ = calibrate(tmp_path, world(1000, 0.01 + 0.98 * random), capsys)
    assert code == 0, out
    threshold = json.loads((tmp_path / "file.json").read_text())["thresholds"]["shapes"]
    assert threshold >= 0.97
    assert (random > threshold).mean() < 0.03


def test_too_few_documents_are_refused_with_the_number_that_is_needed(
    tmp_path: Path, capsys: Any, task_manager: Any
) -> None:
    code, _, err = calibrate(tmp_path, world(200), capsys, "--max_loss", "0.5")
    assert code == 1 and not (tmp_path / "file.json").exists()
    assert {"200", "996"} <= set(err.split())


def test_a_cascade_that_loses_at_its_second_check_is_refused(tmp_path: Path, capsys: Any, task_manager: Any) -> None:
    lost = Answers("red", "blue", "blue", "blue", "red", probability=0.5)
    code, _, err = calibrate(tmp_path, World("shapes", [lost, *world(20).documents] * 30), capsys)
    assert code == 1 and "4.76" in err and "--max_loss" in err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["alone"], "mode=transfer"),
        (["pairs"], "bigger"),
        (["alone", "--max_loss", "0"], "--max_loss 0"),
        (["alone", "--confidence", "1"], "--confidence 1"),
        (["nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(
    tmp_path: Path, capsys: Any, monkeypatch: Any, task_manager: Any, options: list[str], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    world(20).write(tmp_path / "alone", "cascade")
    for benchmark, large in (("shapes", "big"), ("realworldqa", "bigger")):
        made = replace(world(300), benchmark=benchmark, large=large)
        made.write(tmp_path / "pairs" / benchmark / "mai", "cascade")
        made.write(tmp_path / "pairs" / benchmark / "rt", "transfer")
    assert named in refusal(capsys, "calibrate", *options)
