"""The cascade with other rules of agreement does what a run with these rules does."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.folders import Answers, World

from lmms_eval_mai.paper.agreement import AgreementRules
from lmms_eval_mai.paper.benchmarks import BENCHMARKS
from lmms_eval_mai.paper.confidence import Choices
from lmms_eval_mai.reports.build import read, report
from lmms_eval_mai.reports.rules import Rule, auroc, decide, known_answers, outcomes


def relaxed(a: str, b: str) -> bool:
    return BENCHMARKS["chartqa"].agree(a, b, AgreementRules(chartqa_match="relaxed"))


def close(threshold: float) -> Any:
    return lambda a, b: BENCHMARKS["infovqa_val"].agree(a, b, AgreementRules(anls_threshold=threshold))


CHARTS = World(
    "chartqa",
    [
        Answers("100", "101", "100", "x", "100"),  # agree_short only with the relaxed rule
        Answers("100", "7", "100", "102", "90"),  # agree_think only with the relaxed rule
        Answers("red", "red", "red", "red", "red"),
        Answers("blue", "red", "blue", "", "red"),
    ],
)
PAGES = World(
    "infovqa_val",
    [
        Answers("north", "north", "north", "north", "north"),
        Answers("north gate", "north gates", "north gate", "gate", "west"),  # ANLS 0.91
        Answers("north gate", "south gate", "north gate", "north gate", "west"),  # ANLS 0.8
        Answers("a", "north", "south", "nort", "a"),  # ANLS 0.6
    ],
)


def test_a_looser_rule_gives_what_a_cascade_with_this_rule_does(tmp_path: Path, task_manager: Any) -> None:
    check(CHARTS, tmp_path / "charts", relaxed, AgreementRules(chartqa_match="relaxed"))
    pages = dataclasses.replace(PAGES, agree=close(0.9))
    check(pages, tmp_path / "pages", close(0.5), AgreementRules(anls_threshold=0.5))
    check(pages, tmp_path / "two stages", close(0.5), AgreementRules(anls_threshold=0.5), suffix="r_s2")


def test_a_stricter_rule_takes_the_missing_calls_from_full_rt(tmp_path: Path, task_manager: Any) -> None:
    loose = dataclasses.replace(PAGES, agree=close(0.5))
    check(loose, tmp_path / "pages", close(0.95), AgreementRules(anls_threshold=0.95), full_rt=True)
    loose = dataclasses.replace(CHARTS, agree=relaxed)
    check(loose, tmp_path / "charts", CHARTS.agree, AgreementRules(), full_rt=True)


def check(
    world: World, folder: Path, agree: Any, rules: AgreementRules, full_rt: bool = False, suffix: str = "s"
) -> None:
    """Recompute a cascade with another rule of agreement, and compare it with a cascade that has this rule."""
    other = dataclasses.replace(world, agree=agree)
    compare(world, other, folder, Rule(Choices(), None, rules), full_rt, suffix)


def compare(world: World, other: World, folder: Path, rule: Rule, full_rt: bool, suffix: str = "s") -> None:
    world.write(folder / "runs", "cascade", suffix)
    if full_rt:
        world.write(folder / "runs", "transfer", time="20260102_000000")
    args = "" if rule.threshold is None else f"{rule.choices},min_confidence={rule.threshold}"
    other.write(folder / "other", "cascade", suffix, model_args=args)
    runs = read([folder / "runs"])
    ((run,), (expected,)) = (read([folder / name]).of("cascade") for name in ("runs", "other"))
    documents = decide(known_answers(runs, run), rule, run.benchmark)
    assert documents is not None
    assert list(expected.samples.exit) != list(run.samples.exit)
    for column, name in (("exit", "exit"), ("score", "score"), ("tokens", "output_tokens")):
        assert list(documents[column]) == list(expected.samples[name]), column


SURE = World(
    "shapes",
    [
        Answers("red", "red", "red", "red", "red", probability=0.99),
        Answers("red", "blue", "blue", "red", "red", probability=0.3),  # both guess the same
        Answers("red", "blue", "red", "blue", "red", probability=0.8),
        Answers("red", "blue", "red", "red", "blue", probability=0.5),
        Answers("red", "red", "", "red", "red", probability=1.0),  # cannot be read
    ],
)


@pytest.mark.parametrize("threshold", [0.4, 0.7, 1.0])
@pytest.mark.parametrize("verify", ["confidence", "both"])
@pytest.mark.parametrize("first", [("agreement", 0.0), ("confidence", 0.9)])
def test_the_first_check_by_confidence_is_recomputed_from_a_cascade_and_full_rt(
    tmp_path: Path, task_manager: Any, verify: Any, threshold: float, first: tuple[str, float]
) -> None:
    made = dataclasses.replace(SURE, verify=first[0], min_confidence=first[1])
    rule = Rule(Choices(verify), threshold, AgreementRules())
    if first[0] == "confidence" and verify == "both":  # nobody has asked the small model
        made.write(tmp_path, "cascade")
        made.write(tmp_path, "transfer", time="20260102_000000")
        runs = read([tmp_path])
        (run,) = runs.of("cascade")
        assert decide(known_answers(runs, run), rule, "shapes") is None
    else:
        compare(made, dataclasses.replace(SURE, verify=verify, min_confidence=threshold), tmp_path, rule, full_rt=True)


@pytest.mark.parametrize(("later", "mode"), [({"thinker": "large"}, "large"), ({"second_check": "off"}, "transfer")])
def test_what_follows_the_first_check_is_recomputed_from_large_r_and_from_full_rt(
    tmp_path: Path, task_manager: Any, later: Any, mode: str
) -> None:
    documents = [dataclasses.replace(one, large_thought=one.thought) for one in SURE.documents]
    world = dataclasses.replace(SURE, documents=documents)
    world.write(tmp_path, "cascade")
    world.write(tmp_path, mode, "r" if mode == "large" else "s", time="20260102_000000")
    runs = read([tmp_path])
    (run,) = runs.of("cascade")
    found = decide(known_answers(runs, run), Rule(Choices("confidence", **later), 0.7, AgreementRules()), "shapes")
    other = {"large": ("large_think", 104), "transfer": ("transfer", 109)}[mode]
    assert found is not None
    assert [*zip(found.exit, found.tokens, strict=True)] == [("confident", 4), other, ("confident", 4), other, other]
    answers = [one.thought if mode == "large" else one.transferred for one in documents]
    right = [answer == one.gold for answer, one in zip(answers, documents, strict=True)]
    assert [*found.score] == [True, right[1], True, right[3], right[4]]
    made = {(one.rule.choices.thinker, one.rule.choices.second_check) for one in outcomes(runs, run)}
    assert made == {("small", "on"), ("large", "on") if mode == "large" else ("small", "off")}


def test_a_stricter_rule_takes_no_calls_from_a_document_with_another_gold_answer(
    tmp_path: Path, task_manager: Any
) -> None:
    loose = dataclasses.replace(PAGES, agree=close(0.5))
    loose.write(tmp_path, "cascade")
    others = [*PAGES.documents[:3], dataclasses.replace(PAGES.documents[3], gold="another")]
    dataclasses.replace(loose, documents=others).write(tmp_path, "transfer", time="20260102_000000")
    runs = read([tmp_path])
    (run,) = runs.of("cascade")
    assert decide(known_answers(runs, run), Rule(Choices(), None, AgreementRules(0.85)), run.benchmark) is None


def test_a_stricter_rule_is_left_out_without_full_rt(tmp_path: Path, task_manager: Any) -> None:
    loose = dataclasses.replace(PAGES, agree=close(0.6))
    loose.write(tmp_path, "cascade", model_args="anls_threshold=0.6")
    runs = read([tmp_path])
    (run,) = runs.of("cascade")
    found = outcomes(runs, run)
    assert [one.rule.agreement.anls_threshold for one in found if one.rule.name("infovqa_val")[0] != "v"] == [
        0.5,
        0.6,
        0.5,
    ]
    assert [one.is_run for one in found][:3] == [False, True, False]
    rows = report([tmp_path]).table("rules").rows
    names = ["anls_threshold=0.5", "anls_threshold=0.6", "infovqa_match=anls,anls_threshold=0.5"]
    assert [(row[2], row[-1]) for row in rows][:3] == list(zip(names, (None, "yes", None), strict=True))


def test_the_note_of_the_rules_has_the_auroc_of_the_probability(tmp_path: Path, task_manager: Any) -> None:
    SURE.write(tmp_path, "cascade")
    runs = read([tmp_path])
    (run,) = runs.of("cascade")
    # Right short answers have 0.99 and 0.8 and 0.5, wrong ones 0.3 and 1.0.
    assert auroc(runs, run) == pytest.approx(50)
    assert any("AUROC of the probability is 50.0%" in note for note in report([tmp_path]).table("rules").notes)
