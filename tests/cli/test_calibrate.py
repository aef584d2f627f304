"""`lmms-eval-mai calibrate`: the cheapest threshold that keeps its promise, or a sentence."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.evaluations import Evaluations
from support.folders import World
from support.logs import logged
from support.own_command import run_command
from support.pair import Answers

from lmms_eval_mai.analysis import threshold
from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.threshold import BASELINES, THRESHOLDS, Choice, Promise, accepts, losses_of_runs
from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.method.methods import MAI_CONFIDENCE, MAI_CONFIDENCE_DIRECT, METHODS, NEVER, OWN_THINKING
from lmms_eval_mai.run.calibration import Calibrated, Calibration
from lmms_eval_mai.run.config import parse

RIGHT = Answers("red", "red", "red", "red", "red", "red")
GUESS = Answers("red", "blue", "blue", "red", "red", "red")
"""Both short answers are the same wrong guess, and thinking helps."""


def world(number: int) -> World:
    """Return documents of which 20% are shared guesses. Their probabilities are below 0.6, and those of others above
    0.7."""
    random = np.random.default_rng(0)
    documents = []
    for index in range(number):
        one, least = (GUESS, 0.2) if index % 5 == 0 else (RIGHT, 0.7)
        found = least + random.random() * (0.4 if one is GUESS else 0.29)
        documents.append(replace(one, probability=found))
    return World("shapes", documents)


SHAPES = world(400)
"""Without a loss, a promise needs 299 documents."""

BOTH = """
- ask: [large.simple, small.simple]
- stop: {exit: agree_short, answer: large.simple, agree: [small.simple, large.simple], sure: large.simple}
- ask: large.think
- stop: {exit: large_think, answer: large.think}
"""
"""A method of the user."""


def write(made: World, folder: Path, kinds: str = "mai full_rt large_r") -> Path:
    """Write runs of these kinds. Returns the folder, which has one for each."""
    for kind in kinds.split():
        method, _, suffix = kind.partition("_") if kind.startswith("large") else (kind, "", "")
        made.write(folder / kind, method, suffix or "s")
    return folder


def calibrate(folder: Path, made: World, capsys: Any) -> tuple[int, str, str]:
    """Write the runs and choose a threshold by them."""
    return run_command(capsys, "calibrate", write(made, folder / "runs"), "--output", folder / "file.json")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, task_manager: Any) -> Path:
    """A folder with a folder for each run of `SHAPES`."""
    return write(SHAPES, tmp_path_factory.mktemp("runs"), "mai full_rt large_s large_r")


def chosen(folder: Path, method: str = "mai_confidence") -> dict[str, float]:
    """Return the thresholds of a method in the file."""
    found: dict[str, float] = json.loads((folder / "file.json").read_text())["methods"][method]["benchmarks"]
    return found


def test_the_cheapest_threshold_that_keeps_the_promise_is_written(tmp_path: Path, capsys: Any, runs: Path) -> None:
    SHAPES.write(tmp_path / "more", "mai_confidence")  # adds nothing to MAI
    folders, file = (runs / "mai", runs / "full_rt", tmp_path / "more"), tmp_path / "file.json"
    code, out, err = run_command(capsys, "calibrate", *folders, "--output", file)
    assert (code, err) == (0, "")
    found = chosen(tmp_path)
    assert 0.5 <= found["shapes"] <= 0.65
    assert f"method=mai_confidence,min_confidence={file}" in out
    given = {"engine": "scripted", "small": "a", "large": "b", "method": "mai_confidence", "min_confidence": str(file)}
    config = parse(given)
    assert {config.thresholds.of(name) for name in ("shapes", "pope")} == {found["shapes"]}
    assert config.calibration is not None
    calibrated = config.calibration.methods["mai_confidence"]
    assert (calibrated.method, calibrated.documents) == (MAI_CONFIDENCE, {"shapes": len(SHAPES.documents)})
    refused = replace(calibrated, benchmarks={})
    replace(config.calibration, methods={"mai_confidence": refused}).write(file)
    assert {parse(given).thresholds.of(name) for name in ("shapes", "pope")} == {NEVER}


@pytest.mark.parametrize(
    ("method", "options", "kinds"),
    [
        ("own_thinking", [], "large_s large_r"),  # no small model anywhere
        ("both.yaml", ["--against", "large-r"], "mai large_r"),
        ("mai_confidence_direct", [], "large_s full_rt"),
        ("mai_confidence", ["--against", "large-r"], "mai full_rt large_r"),
        ("mai_confidence", ["--loss", "answers"], "mai full_rt"),
    ],
)
def test_each_method_has_a_threshold_of_its_own(
    tmp_path: Path, capsys: Any, runs: Path, method: str, options: list[str], kinds: str
) -> None:
    file, folders = tmp_path / "file.json", [runs / kind for kind in kinds.split()]
    (tmp_path / "both.yaml").write_text(BOTH)
    given = method if method in METHODS else str(tmp_path / method)
    code, out, error = run_command(capsys, "calibrate", *folders, "--output", file, "--method", given, *options)
    assert code == 0, error
    threshold = chosen(tmp_path, Path(method).stem)["shapes"]
    assert 0.5 <= threshold <= 0.65 and repr(threshold) in out
    assert ("answers that differ" in out) == ("answers" in options)
    run = {"engine": "scripted", "small": "a", "large": "b", "method": given, "min_confidence": str(file)}
    assert parse(run).thresholds.of("shapes") == threshold


@pytest.mark.slow
def test_a_file_has_the_thresholds_of_several_methods_and_a_run_uses_that_of_its_own(
    tmp_path: Path, capsys: Any, task_manager: Any
) -> None:
    file = tmp_path / "file.json"
    made = replace(SHAPES, documents=[replace(one, large_thought=one.large) for one in SHAPES.documents])
    write(made, tmp_path / "runs", "mai full_rt large_s large_r")
    kinds = {"mai_confidence": "mai full_rt", "own_thinking": "large_s large_r"}  # which have no small model

    def calibrate_by_runs(name: str) -> int:
        folders = [tmp_path / "runs" / kind for kind in kinds[name].split()]
        return run_command(capsys, "calibrate", *folders, "--output", file, "--method", name)[0]

    assert [calibrate_by_runs(name) for name in kinds] == [0, 0]
    thresholds = {name: chosen(tmp_path, name)["shapes"] for name in kinds}
    assert thresholds["own_thinking"] == THRESHOLDS[-1] < 0.5 <= thresholds["mai_confidence"]
    for name in kinds:
        run = Evaluations(tmp_path, store="off", method=name, min_confidence=str(file))
        assert {trace.min_confidence for trace in run.run(range(3))} == {thresholds[name]}
    written = json.loads(file.read_text())
    assert written["models"] == {"small": made.small, "large": made.large}
    for side, code in (("small", 0), ("large", 1)):  # own thinking has no small model
        other = {**written, "models": {**written["models"], side: "other"}}
        file.write_text(json.dumps(other))
        assert calibrate_by_runs("own_thinking") == code and json.loads(file.read_text()) == other


@pytest.mark.parametrize(
    ("method", "change", "told"),
    [
        (MAI_CONFIDENCE, {}, None),
        (MAI_CONFIDENCE, {"engines": {}}, None),  # not known
        (MAI_CONFIDENCE, {"engines": {"small": "scripted", "large": "vllm 0.11.0"}}, "vllm 0.11.0"),
        (OWN_THINKING, {"engines": {"small": "vllm 0.11.0", "large": "scripted"}}, None),
        (MAI_CONFIDENCE, {"models": {"small": "other", "large": "script.jsonl"}}, "other"),
        (OWN_THINKING, {"models": {"small": "other", "large": "elsewhere/script.jsonl"}}, None),
        (replace(MAI_CONFIDENCE, steps=OWN_THINKING.steps), {}, ""),
    ],
)
def test_run_on_other_engines_or_models_than_those_of_the_file_gets_a_warning(
    tmp_path: Path, method: Any, change: dict[str, Any], told: str | None
) -> None:
    models, engines = (dict.fromkeys(SIDES, name) for name in ("script.jsonl", "scripted"))
    found = Calibration({method.name: Calibrated(method, {"pope": 0.7}, "", {"pope": 300})}, models, engines)
    replace(found, **change).write(tmp_path / "file.json")
    made = Evaluations(tmp_path, store="off", method=method.name, min_confidence=str(tmp_path / "file.json"))
    with logged("WARNING") as messages:
        made.run(range(3))
    assert bool(messages) == (told is not None) and (not messages or told in messages[0])


@pytest.mark.slow
def test_an_overconfident_model_gets_a_threshold_beyond_all_percentages(
    tmp_path: Path, capsys: Any, task_manager: Any
) -> None:
    sure = [replace(RIGHT, probability=1 - 1e-7)] * 300
    wrong = [replace(GUESS, probability=1 - 1e-5)] * 100
    code, out, _ = calibrate(tmp_path, World("shapes", sure + wrong), capsys)
    assert code == 0, out
    assert 1 - 1e-5 < chosen(tmp_path)["shapes"] < 1 - 1e-7


@pytest.mark.parametrize(("confidence", "is_promised"), [(0.95, True), (0.975, False)])
def test_a_higher_confidence_needs_more_documents(confidence: float, is_promised: bool) -> None:
    promise = Promise(MAI_CONFIDENCE_DIRECT, 0.01, confidence, BASELINES["full-rt"])
    assert accepts(np.zeros(299), True, promise) is is_promised


def test_documents_that_a_limit_chose_get_a_warning(tmp_path: Path, capsys: Any, task_manager: Any) -> None:
    code, _, err = calibrate(tmp_path, world(20), capsys)
    assert code == 1 and "--limit" not in err and "At least 299 are needed" in err
    for file in (tmp_path / "runs").rglob("*_results.json"):
        results = json.loads(file.read_text())
        results["config"]["limit"] = 20
        file.write_text(json.dumps(results))
    assert "--limit" in run_command(capsys, "calibrate", tmp_path / "runs")[2]


@pytest.mark.parametrize("is_exact", [True, False])
def test_nothing_below_the_loss_of_the_documents_that_choose_is_promised(is_exact: bool) -> None:
    promise, random, promised = Promise(MAI_CONFIDENCE, 0.01, 0.5, BASELINES["full-rt"]), np.random.default_rng(0), 0
    for _ in range(200):  # bets may be won before the losses come
        losses = (random.random((1, 400)) < 0.015).astype(float)
        if threshold.threshold_index(losses, is_exact, promise) is not None:
            assert losses.mean() <= 0.01
            promised += 1
    assert promised


@pytest.mark.slow
def test_traces_of_a_server_with_both_methods_are_calibrated_without_gold_answers(
    tmp_path: Path, capsys: Any, runs: Path
) -> None:
    by_runs = ("calibrate", runs / "mai", runs / "full_rt", "--output", tmp_path / "file.json")
    assert run_command(capsys, *by_runs, "--loss", "answers")[0] == 0
    expected = chosen(tmp_path)["shapes"]
    write_traces(tmp_path, has_images=True)
    arguments = ("calibrate", tmp_path / "traces", "--output", tmp_path / "file.json")
    assert run_command(capsys, *arguments)[0] == 1  # nobody knows the scores
    code, _, err = run_command(capsys, *arguments, "--loss", "answers")
    assert code == 0 and chosen(tmp_path) == {"any": expected}, err
    models = json.loads((tmp_path / "file.json").read_text())["models"]
    assert models == {"small": SHAPES.small, "large": SHAPES.large}
    write_traces(tmp_path, has_images=False)
    code, _, err = run_command(capsys, *arguments, "--loss", "answers")
    assert code == 1 and "images" in err


def write_traces(folder: Path, has_images: bool) -> None:
    """Write the answers of a server with two methods."""
    (folder / "traces").mkdir(exist_ok=True)
    for method in ("mai", "full_rt"):
        with (folder / f"traces/{method}.traces.jsonl").open("w") as file:
            for number, line in enumerate(SHAPES.lines(method)):
                images = [f"image {number}"] if has_images else []
                print(json.dumps({"id": f"q{number}", "mai": {**line["token_counts"][0], "images": images}}), file=file)


@pytest.mark.slow
def test_images_are_the_units_and_unknown_ones_are_refused(tmp_path: Path, capsys: Any, task_manager: Any) -> None:
    documents = [
        replace(one, gold="yes", small="yes", large="yes", thought="yes", transferred="yes", large_thought="yes")
        for one in world(640).documents
    ]
    code, _, err = calibrate(tmp_path, World("pope", documents[:20]), capsys)
    assert code == 1 and "may share images" in err
    shared = [replace(one, images=(f"{index // 2}",)) for index, one in enumerate(documents)]
    code, out, err = calibrate(tmp_path, World("pope", shared), capsys)
    assert code == 0 and all(word in out for word in ("per image", "F1", "320")), err
    code, _, err = calibrate(tmp_path, World("pope", shared[:600]), capsys)  # 305 without a loss are needed
    assert code == 1 and "300 images" in err


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "kinds"), [("answers", "mai full_rt"), ("score", "large full_rt")])
def test_a_threshold_for_a_task_of_ones_own_is_that_of_a_benchmark_with_the_same_answers(
    tmp_path: Path, capsys: Any, task_manager: Any, loss: str, kinds: str
) -> None:
    documents = [*world(320).documents, replace(RIGHT, small="blue", thought="blue")]  # MAI transfers the last one
    documents = [replace(one, images=(f"{index}",)) for index, one in enumerate(documents)]
    given = ("--method", "mai_confidence_direct", "--output", tmp_path / "file.json", "--loss")
    found: dict[str, float] = {}
    for name, suffix in (("mytask", ""), ("shapes", "s")):
        for kind in kinds.split():
            World(name, documents).write(tmp_path / name / kind, kind, suffix)
        code, _, err = run_command(capsys, "calibrate", tmp_path / name, *given, loss)
        assert code == 0, err
        found |= chosen(tmp_path, "mai_confidence_direct")
    assert found["mytask"] == found["shapes"]
    if loss == "answers":  # no run has scored each short answer
        code, _, err = run_command(capsys, "calibrate", tmp_path / "mytask", *given, "score")
        assert code == 1 and "large" in err and "--loss answers" in err


def test_an_unreadable_answer_of_the_baseline_is_the_same_as_itself_and_as_no_other_answer(
    tmp_path: Path, task_manager: Any
) -> None:
    made = World("shapes", [replace(RIGHT, transferred="", probability=p) for p in (0.9, 0.1)])
    runs = Runs.read([write(made, tmp_path, "mai full_rt large_r")])
    promise = Promise(MAI_CONFIDENCE_DIRECT, 0.01, 0.95, BASELINES["full-rt"], loss="answers")
    (losses,) = losses_of_runs(runs, promise)
    assert losses.values[0].tolist() == [0, 0] and losses.values[THRESHOLDS.index(0.5)].tolist() == [1, 0]
    band = Choice(losses, THRESHOLDS.index(0.5))  # of so few documents, it has all shares
    assert (band.exits.low, band.exits.high) == (0, 100)
    assert (band.tokens.low, band.tokens.high) == pytest.approx((4, 109))  # only the short answer, and all calls
