"""`lmms-eval-mai calibrate`: the cheapest threshold that keeps its promise, or a sentence."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.folders import Answers, World
from support.own_command import refusal, run_command

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.agreement import AgreementRules
from lmms_eval_mai.paper.confidence import NEVER, Choices
from lmms_eval_mai.reports.build import read
from lmms_eval_mai.reports.calibrate import place_of
from lmms_eval_mai.reports.losses import THRESHOLDS, Wanted
from lmms_eval_mai.reports.rules import Rule, decide, known_answers
from lmms_eval_mai.run.config import parse

RIGHT = Answers("red", "red", "red", "red", "red", "red")
GUESS = Answers("red", "blue", "blue", "red", "red", "red")
"""Both short answers are the same wrong guess, and thinking helps."""
LOST = Answers("red", "blue", "blue", "blue", "red", "red", probability=0.4)
"""The second check returns a wrong answer, and Full RT is right."""


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
    made.write(folder / "runs/mai", "cascade")
    made.write(folder / "runs/rt", "transfer")
    made.write(folder / "runs/large_r", "large", "r")
    return run_command(capsys, "calibrate", folder / "runs", "--output", folder / "file.json", *options)


def chosen(folder: Path) -> Any:
    return json.loads((folder / "file.json").read_text())


def test_the_cheapest_threshold_that_keeps_the_promise_is_written(
    tmp_path: Path, capsys: Any, task_manager: Any
) -> None:
    confident = replace(world(1000), verify="confidence", min_confidence=0.9)  # adds nothing to the other cascade
    confident.write(tmp_path / "runs/rt", "cascade", time="20260102_000000", model_args="verify=confidence")
    code, out, _ = calibrate(tmp_path, world(1000), capsys)
    assert code == 0, out
    file, found = tmp_path / "file.json", chosen(tmp_path)
    assert 0.5 <= found["thresholds"]["shapes"] <= 0.65
    assert (found["verify"], found["documents"]) == ("confidence", {"shapes": 1000})
    assert found["pooled"] == found["thresholds"]["shapes"]
    assert f"verify=confidence,min_confidence={file}" in out
    given = {"engine": "scripted", "small": "a", "large": "b", "verify": "confidence", "min_confidence": str(file)}
    thresholds = parse(given).thresholds
    assert thresholds.of("shapes") == found["thresholds"]["shapes"] and thresholds.of("pope") == found["pooled"]
    refused = {**found, "pooled": None, "thresholds": {}}
    file.write_text(json.dumps(refused))
    assert {parse(given).thresholds.of(name) for name in ("shapes", "pope")} == {NEVER}
    file.write_text(json.dumps(found))
    assert parse({**given, "verify": "agreement", "min_confidence": None}).choices == Choices()
    with pytest.raises(ArgumentError, match="has the thresholds of verify=confidence"):
        parse({**given, "verify": "both"})


@pytest.mark.parametrize(
    ("options", "choices", "runs"),
    [
        (["--thinker", "large"], ("confidence", "large", "on"), ["mai", "large_r"]),
        (["--thinker", "large"], ("confidence", "large", "on"), ["large_s", "large_r"]),  # no small model anywhere
        (["--thinker", "large", "--against", "full-rt"], ("confidence", "large", "on"), ["mai", "rt", "large_r"]),
        (["--thinker", "large", "--verify", "both"], ("both", "large", "on"), ["mai", "large_r"]),
        (["--second_check", "off"], ("confidence", "small", "off"), ["mai", "rt"]),
        (["--second_check", "off"], ("confidence", "small", "off"), ["large_s", "rt"]),
        (["--against", "large-r"], ("confidence", "small", "on"), ["mai", "rt", "large_r"]),
        (["--looks", "2"], ("confidence", "small", "on"), ["mai", "rt"]),
        (["--loss", "answers"], ("confidence", "small", "on"), ["mai", "rt"]),
    ],
)
def test_each_choice_has_a_threshold_of_its_own_and_a_run_with_others_refuses_it(
    tmp_path: Path, capsys: Any, task_manager: Any, options: list[str], choices: tuple[str, ...], runs: list[str]
) -> None:
    made = world(800)
    kinds = {"mai": ("cascade", "s"), "rt": ("transfer", "s"), "large_r": ("large", "r"), "large_s": ("large", "s")}
    for name in runs:
        made.write(tmp_path / name, *kinds[name])
    folders = [tmp_path / name for name in runs]
    code, out, error = run_command(capsys, "calibrate", *folders, "--output", tmp_path / "file.json", *options)
    found = chosen(tmp_path)
    assert code == 0, error
    assert (found["verify"], found["thinker"], found["second_check"]) == choices
    assert 0.5 <= found["thresholds"]["shapes"] <= 0.65 and repr(found["thresholds"]["shapes"]) in out
    given = dict(zip(("verify", "thinker", "second_check"), choices, strict=True))
    base = {"engine": "scripted", "small": "a", "large": "b", "min_confidence": str(tmp_path / "file.json")}
    if choices[1] == "large":
        del given["second_check"]
    assert parse(base | given).thresholds.of("shapes") == found["thresholds"]["shapes"]
    with pytest.raises(ArgumentError, match="has the thresholds of"):
        parse(base | given | {"verify": "both" if choices[0] == "confidence" else "confidence"})


def test_the_thresholds_are_equally_spaced_in_the_logit_and_none_is_rounded_to_1() -> None:
    logits = [math.log(p / (1 - p)) for p in THRESHOLDS]
    assert np.diff(logits) == pytest.approx(-0.25, abs=0.02) and len(set(THRESHOLDS)) == 89
    assert (logits[0], logits[-1]) == pytest.approx((18, -4), abs=0.01)
    assert all(float(repr(p)) == p < 1 for p in THRESHOLDS)


def test_an_overconfident_model_gets_a_threshold_beyond_all_percentages(
    tmp_path: Path, capsys: Any, task_manager: Any
) -> None:
    sure = [replace(RIGHT, probability=1 - 1e-7)] * 600
    wrong = [replace(GUESS, probability=1 - 1e-5)] * 200
    code, out, _ = calibrate(tmp_path, World("shapes", sure + wrong), capsys)
    assert code == 0, out
    assert 1 - 1e-5 < chosen(tmp_path)["thresholds"]["shapes"] < 1 - 1e-7


def test_useless_probabilities_choose_the_safest_thresholds(tmp_path: Path, capsys: Any, task_manager: Any) -> None:
    random = np.random.default_rng(1).random(1000)
    code, out, _ = calibrate(tmp_path, world(1000, 0.01 + 0.98 * random), capsys)
    assert code == 0, out
    threshold = chosen(tmp_path)["thresholds"]["shapes"]
    assert threshold >= 0.95
    assert (random > threshold).mean() < 0.05


@pytest.mark.parametrize(("number", "looks", "is_promised"), [(298, 1, 0), (299, 1, 1), (299, 2, 0), (500, 2, 1)])
def test_each_further_look_needs_more_documents_for_the_same_promise(
    tmp_path: Path, capsys: Any, task_manager: Any, number: int, looks: int, is_promised: int
) -> None:
    made = World("shapes", [RIGHT] * number)
    code, _, err = calibrate(tmp_path, made, capsys, "--second_check", "off", "--looks", str(looks))
    assert (code == 0) == (tmp_path / "file.json").exists() == is_promised, err


def test_documents_that_a_limit_chose_get_a_warning(tmp_path: Path, capsys: Any, task_manager: Any) -> None:
    code, _, err = calibrate(tmp_path, world(800), capsys)
    assert (code, err) == (0, "")
    for file in (tmp_path / "runs").rglob("*_results.json"):
        results = json.loads(file.read_text())
        results["config"]["limit"] = 800
        file.write_text(json.dumps(results))
    code, _, err = run_command(capsys, "calibrate", tmp_path / "runs", "--output", tmp_path / "file.json")
    assert code == 0 and "--limit" in err


@pytest.mark.parametrize("is_exact", [True, False])
def test_nothing_below_the_loss_of_the_documents_that_choose_is_promised(is_exact: bool) -> None:
    wanted, random, promised = Wanted(max_loss=0.01, confidence=0.5, against="full-rt"), np.random.default_rng(0), 0
    for _ in range(200):  # bets may be won before the losses come
        losses = (random.random((1, 400)) < 0.015).astype(float)
        if place_of(losses, is_exact, wanted) is not None:
            assert losses.mean() <= 0.01
            promised += 1
    assert promised


def test_without_the_second_check_a_threshold_is_found_where_that_check_loses_too_much(
    tmp_path: Path, capsys: Any, task_manager: Any
) -> None:
    made = World("shapes", [LOST, *world(20).documents] * 30)
    code, _, err = calibrate(tmp_path, made, capsys)
    assert code == 1 and "4.76" in err
    code, out, _ = calibrate(tmp_path, made, capsys, "--second_check", "off")
    assert code == 0 and chosen(tmp_path)["thresholds"]["shapes"] > 0.5, out


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--second_check", "off"],
        pytest.param([], marks=pytest.mark.long),
        pytest.param(["--thinker", "large"], marks=pytest.mark.long),
    ],
)
def test_labels_are_asked_for_until_more_cannot_lower_the_threshold(
    tmp_path: Path, capsys: Any, task_manager: Any, options: list[str]
) -> None:
    documents, random = world(1500).documents, np.random.default_rng(3)
    for index in range(0, 1500, 5):  # half of the shared guesses are right
        documents[index] = replace(documents[index], gold=str(random.choice(["blue", "red"])))
    made = World("shapes", documents)
    assert calibrate(tmp_path, made, capsys, *options)[0] == 0
    expected, known, asked = chosen(tmp_path)["thresholds"], [], set()
    nobody = replace(made, documents=[replace(one, gold="?") for one in documents], score=lambda answer, gold: 0.0)
    calibrate(tmp_path, nobody, capsys)  # writes the runs
    arguments = ("calibrate", tmp_path / "runs", "--output", tmp_path / "file.json", *options)
    for number in range(3):
        file, labels = tmp_path / f"{number}.jsonl", ["--labels", *known] if known else []
        code, _, err = run_command(capsys, *arguments, *labels, "--to_label", file)
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert code == 0, err
        assert all(line["answers"] == ["blue", "red"] and line["question"] == "A question?" for line in lines)
        new = {line["doc_id"] for line in lines}
        assert not new & asked and new <= set(range(0, 1500, 5))
        golds = ({**line, "gold": documents[line["doc_id"]].gold} for line in lines)
        file.write_text("".join(json.dumps(line) + "\n" for line in golds))
        assert bool(lines) == (number < 2)
        asked |= new
        known.append(str(file))
        code, _, _ = run_command(capsys, *arguments, "--labels", *known)
        assert code == 0 and chosen(tmp_path)["thresholds"]["shapes"] >= expected["shapes"]
    assert len(asked) < 150  # of 300 documents whose answers differ
    assert chosen(tmp_path)["thresholds"] == expected


def test_without_a_needed_label_the_tests_end(tmp_path: Path, capsys: Any, task_manager: Any) -> None:
    file = tmp_path / "labels.jsonl"
    made = World("shapes", [replace(LOST, gold="?"), *world(20).documents] * 30)  # the second check needs labels
    made = replace(made, score=lambda answer, gold: 0.0)
    calibrate(tmp_path, made, capsys, "--to_label", str(file))
    needed = {json.loads(line)["doc_id"] for line in file.read_text().splitlines()}
    assert needed >= set(range(0, 630, 21))
    assert calibrate(tmp_path, made, capsys, "--labels", str(file))[0] == 1 and not (tmp_path / "file.json").exists()
    code, _, err = calibrate(tmp_path, made, capsys, "--second_check", "off", "--labels", str(file))
    assert code == 0, err
    assert chosen(tmp_path)["thresholds"]["shapes"] > 0.6  # the first differing answer has a probability below


def test_traces_of_a_server_in_both_modes_are_calibrated_without_gold_answers(
    tmp_path: Path, capsys: Any, task_manager: Any
) -> None:
    made = world(600)
    calibrate(tmp_path, made, capsys, "--loss", "answers")
    expected = chosen(tmp_path)["thresholds"]["shapes"]
    write_traces(tmp_path, made, lambda index: [f"image {index}"])
    arguments = ("calibrate", tmp_path / "traces", "--output", tmp_path / "file.json")
    assert run_command(capsys, *arguments)[0] == 1  # nobody knows the scores
    code, _, err = run_command(capsys, *arguments, "--loss", "answers")
    assert code == 0 and chosen(tmp_path)["thresholds"] == {"any": expected}, err
    assert (chosen(tmp_path)["small"], chosen(tmp_path)["large"]) == ("2B", "8B")
    write_traces(tmp_path, made, lambda index: [])
    assert "images" in refusal(capsys, *arguments, "--loss", "answers")


def write_traces(folder: Path, made: World, images: Callable[[int], list[str]]) -> None:
    """Write the answers of a server in two modes."""
    (folder / "traces").mkdir(exist_ok=True)
    for mode in ("cascade", "transfer"):
        lines = []
        for index, one in enumerate(made.documents):
            (trace,) = made.line(index, one, mode, "s")["token_counts"]
            mai = {"mode": mode, **trace, "images": images(index)}
            lines.append(json.dumps({"id": f"q{index}", "mai": mai, "small": "2B", "large": "8B"}) + "\n")
        (folder / f"traces/{mode}.traces.jsonl").write_text("".join(lines))


@pytest.mark.slow
def test_images_are_the_units_and_unknown_ones_are_refused(tmp_path: Path, capsys: Any, task_manager: Any) -> None:
    documents = [
        replace(one, gold="yes", small="yes", large="yes", thought="yes", transferred="yes", large_thought="yes")
        for one in world(960).documents
    ]
    code, _, err = calibrate(tmp_path, World("pope", documents), capsys)
    assert code == 1 and "images" in err
    shared = [replace(one, fields=(("images", [f"{index // 3}"]),)) for index, one in enumerate(documents)]
    code, out, err = calibrate(tmp_path, World("pope", shared), capsys)
    assert code == 0 and "per image" in chosen(tmp_path)["promise"] and "F1" in chosen(tmp_path)["promise"], err
    assert "320" in out
    code, _, err = calibrate(tmp_path, World("pope", shared[:900]), capsys)  # 305 without a loss are needed
    assert code == 1 and "300 images" in err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["alone"], "mode=transfer"),
        (["alone", "--thinker", "large"], "_r"),
        (["pairs"], "bigger"),
        (["alone", "--max_loss", "0"], "--max_loss 0"),
        (["alone", "--confidence", "1"], "--confidence 1"),
        (["alone", "--looks", "0"], "--looks 0"),
        (["alone", "--thinker", "large", "--second_check", "off"], "--second_check"),
        (["alone", "--loss", "answers", "--labels", "x"], "--labels"),
        (["alone", "--labels", "nowhere.jsonl"], "nowhere.jsonl"),
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


@pytest.mark.parametrize(("verify", "thinker", "second"), [("confidence", "large", "on"), ("both", "small", "off")])
def test_a_rule_answers_with_the_baseline_where_its_first_check_fails(
    tmp_path: Path, task_manager: Any, verify: Any, thinker: Any, second: Any
) -> None:
    made = World("shapes", [replace(GUESS, transferred="green", large_thought="green"), RIGHT, LOST])
    for mode, suffix in (("cascade", "s"), ("transfer", "s"), ("large", "r")):
        made.write(tmp_path / mode, mode, suffix)
    runs = read([tmp_path])
    (run,) = runs.first_checks()
    known = known_answers(runs, run)
    decided = decide(known, Rule(Choices(verify, thinker, second), NEVER, AgreementRules()), "shapes")
    assert decided is not None
    name = "large_r" if thinker == "large" else "full_rt"
    assert list(decided.answer) == list(known[name]) and list(decided.score) == list(known[f"{name}_score"])
    assert set(decided.exit) == {"large_think" if thinker == "large" else "transfer"}
    assert list(decided.tokens) == [104] * 3 if thinker == "large" else [113] * 3
