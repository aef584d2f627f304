"""The cascade with other rules of agreement does what a run with these rules does."""

import dataclasses
from pathlib import Path
from typing import Any

from support.folders import Answers, World

from lmms_eval_mai.paper.agreement import AgreementRules
from lmms_eval_mai.paper.benchmarks import BENCHMARKS
from lmms_eval_mai.reports.build import evidence, report
from lmms_eval_mai.reports.rules import curves, recompute


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
    """Recompute a cascade with another rule, and compare it with a cascade that has this rule."""
    world.write(folder / "runs", "cascade", suffix)
    if full_rt:
        world.write(folder / "runs", "transfer", time="20260102_000000")
    other = dataclasses.replace(world, agree=agree)
    other.write(folder / "other", "cascade", suffix)
    runs, _ = evidence([folder / "runs"])
    ((run,), (expected,)) = (evidence([folder / name])[0].of("cascade") for name in ("runs", "other"))
    outcome = recompute(runs, run, rules, runs.full_rt(run) if full_rt else None)
    assert outcome is not None
    exits = list(expected.samples.exit)
    assert exits != list(run.samples.exit)
    assert outcome.exits == {exit: exits.count(exit) for exit in outcome.exits}
    assert outcome.tokens == expected.samples.output_tokens.mean()
    assert outcome.score.n == 4


def test_a_stricter_rule_takes_no_calls_from_a_document_with_another_gold_answer(
    tmp_path: Path, task_manager: Any
) -> None:
    loose = dataclasses.replace(PAGES, agree=close(0.5))
    loose.write(tmp_path, "cascade")
    others = [*PAGES.documents[:3], dataclasses.replace(PAGES.documents[3], gold="another")]
    dataclasses.replace(loose, documents=others).write(tmp_path, "transfer", time="20260102_000000")
    runs, _ = evidence([tmp_path])
    (run,) = runs.of("cascade")
    assert recompute(runs, run, AgreementRules(anls_threshold=0.85), runs.full_rt(run)) is None


def test_a_stricter_rule_is_left_out_without_full_rt(tmp_path: Path, task_manager: Any) -> None:
    loose = dataclasses.replace(PAGES, agree=close(0.6))
    loose.write(tmp_path, "cascade", model_args="anls_threshold=0.6")
    ((_, outcomes),) = curves(evidence([tmp_path])[0])
    assert [one.rules.anls_threshold for one in outcomes] == [0.5, 0.6]
    assert [one.is_run for one in outcomes] == [False, True]
    rows = report([tmp_path]).table("rules").rows
    assert [row[2:4] for row in rows] == [("anls_threshold=0.5", None), ("anls_threshold=0.6", "yes")]
