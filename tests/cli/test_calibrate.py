"""`lmms-eval-mai calibrate`: the cheapest threshold that keeps its promise, or a sentence."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.folders import Answers, World
from support.own_command import run_command

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
    with pytest.raises(ArgumentError, match="has the thresholds of verify=confidence, and verify=both is given"):
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
    assert (
        "200 documents cannot promise a loss of at most 0.5 points with a confidence of 95%; about 996 like these may."
        in err
    )


def test_a_cascade_that_loses_at_its_second_check_is_refused(tmp_path: Path, capsys: Any, task_manager: Any) -> None:
    lost = Answers("red", "blue", "blue", "blue", "red", probability=0.5)
    code, _, err = calibrate(tmp_path, World("shapes", [lost, *world(20).documents] * 30), capsys)
    assert code == 1
    assert "min_confidence=1, the safest threshold, which loses 4.76 points here. Allow more with --max_loss." in err


def test_folders_without_full_rt_or_probabilities_are_refused(tmp_path: Path, capsys: Any, task_manager: Any) -> None:
    world(20).write(tmp_path, "cascade")
    code, _, err = run_command(capsys, "calibrate", tmp_path)
    assert (
        code == 1
        and "give the folders of one cascade (mode=cascade, verify=agreement) and of Full RT (mode=transfer)" in err
    )


def test_cascades_of_different_pairs_are_refused(tmp_path: Path, capsys: Any, task_manager: Any) -> None:
    for benchmark, large in (("shapes", "big"), ("realworldqa", "bigger")):
        made = replace(world(300), benchmark=benchmark, large=large)
        made.write(tmp_path / benchmark / "mai", "cascade")
        made.write(tmp_path / benchmark / "rt", "transfer")
    code, _, err = run_command(capsys, "calibrate", tmp_path)
    assert code == 1 and "have different models" in err and "bigger). Give the folders of one pair." in err
