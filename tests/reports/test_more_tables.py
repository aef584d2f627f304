"""The tables that the paper lacks are recomputed from the answers, one document at a time."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
from support.folders import Answers, World, call, line, write_run
from support.tables import row_of, value
from support.worlds import pope_world, write_all

from lmms_eval_mai.paper.agreement import AgreementRules
from lmms_eval_mai.paper.benchmarks import BENCHMARKS
from lmms_eval_mai.reports.build import report
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.more_tables.rules import curves, recompute
from lmms_eval_mai.reports.reading import read
from lmms_eval_mai.reports.report import Report

WORLD = pope_world(40)
DOCUMENTS = WORLD.documents
MAI = ("POPE", "MAI 8B + 2B-R")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of all methods on the yes-no questions."""
    folder = tmp_path_factory.mktemp("runs")
    write_all(WORLD, folder)
    return report([folder])


def percent(flags: Any) -> float:
    flags = list(flags)
    return 100 * sum(flags) / len(flags)


AGREE_SHORT = [one for one in DOCUMENTS if one.small and one.small == one.large]
LATER = [one for one in DOCUMENTS if one not in AGREE_SHORT]
AGREE_THINK = [one for one in LATER if one.thought and one.thought == one.large]
TRANSFER = [one for one in LATER if one not in AGREE_THINK]
FINAL = {id(one): one.transferred if any(one is other for other in TRANSFER) else one.large for one in DOCUMENTS}


def test_accuracy_by_exit_is_beside_that_of_the_other_methods_on_the_same_documents(found: Report) -> None:
    table = found.table("accuracy-by-exit")
    for exit, documents in (("agree_short", AGREE_SHORT), ("agree_think", AGREE_THINK), ("transfer", TRANSFER)):
        assert documents
        row = row_of(table, *MAI, exit)
        assert row["n"] == len(documents)
        assert value(row["MAI"]) == pytest.approx(percent(FINAL[id(one)] == one.gold for one in documents))
        assert value(row["small S"]) == pytest.approx(percent(one.small == one.gold for one in documents))
        assert value(row["large S"]) == pytest.approx(percent(one.large == one.gold for one in documents))
        assert value(row["Full RT"]) == pytest.approx(percent(one.transferred == one.gold for one in documents))


def test_agreement_is_compared_with_guessers_that_pair_the_answers_at_random(found: Report) -> None:
    row = row_of(found.table("agreement"), *MAI, "short")
    right = sum(one.large == one.gold for one in AGREE_SHORT)
    assert value(row["agree, %"]) == pytest.approx(percent(one in AGREE_SHORT for one in DOCUMENTS))
    assert value(row["agree and wrong, %"]) == pytest.approx(100 * (len(AGREE_SHORT) - right) / 40)
    assert value(row["right if they agree, %"]) == pytest.approx(100 * right / len(AGREE_SHORT))
    shuffled = list(itertools.product(DOCUMENTS, DOCUMENTS, DOCUMENTS))
    agreed = [(a, c) for a, b, c in shuffled if a.small and a.small == b.large]
    assert row["guessers agree, %"] == pytest.approx(100 * len(agreed) / len(shuffled))
    assert row["guessers right if they agree, %"] == pytest.approx(percent(a.small == c.gold for a, c in agreed))
    chance = len(agreed) / len(shuffled)
    assert row["kappa"] == pytest.approx((len(AGREE_SHORT) / 40 - chance) / (1 - chance))


def test_the_second_verification_is_about_the_documents_that_disagreed(found: Report) -> None:
    row = row_of(found.table("agreement"), *MAI, "think")
    assert row["compared"] == len(LATER)
    assert value(row["agree, %"]) == pytest.approx(100 * len(AGREE_THINK) / len(LATER))


def test_harm_and_rescue_count_the_documents_that_the_transfer_changes(found: Report) -> None:
    for name, documents in (("MAI 8B + 2B-R", TRANSFER), ("Full RT 8B + 2B-R", DOCUMENTS)):
        row = row_of(found.table("harm-and-rescue"), "POPE", name)
        lost = sum(one.large == one.gold != one.transferred for one in documents)
        won = sum(one.transferred == one.gold != one.large for one in documents)
        assert (row["transferred"], row["of these lost"], row["of these won"]) == (len(documents), lost, won)
        assert row["net"] == won - lost
        assert value(row["rescue, %"]) == pytest.approx(100 * won / sum(one.large != one.gold for one in documents))


def test_the_random_router_has_mais_tokens_and_the_oracle_the_better_score(found: Report) -> None:
    row = row_of(found.table("routers"), *MAI, "8B-S", "Full RT 8B + 2B-R")
    tokens = (8 * 40 + 100 * len(LATER) + 5 * len(TRANSFER)) / 40
    assert row["tokens"] == pytest.approx(tokens)
    chosen = (tokens - 4) / (105 - 4)
    assert row["random: expensive, %"] == pytest.approx(100 * chosen)
    cheap = percent(one.large == one.gold for one in DOCUMENTS)
    expensive = percent(one.transferred == one.gold for one in DOCUMENTS)
    assert row["random"] == pytest.approx((1 - chosen) * cheap + chosen * expensive)
    mai = percent(FINAL[id(one)] == one.gold for one in DOCUMENTS)
    assert row["MAI"] == pytest.approx(mai)
    assert value(row["MAI - random, points"]) == pytest.approx(mai - row["random"])  # type: ignore[operator]
    assert row["oracle"] == pytest.approx(percent(one.gold in (one.large, one.transferred) for one in DOCUMENTS))
    changed = sum(one.transferred == one.gold != one.large for one in DOCUMENTS)
    assert row["oracle tokens"] == pytest.approx((105 * changed + 4 * (40 - changed)) / 40)


def test_mai_is_compared_with_each_other_method_once(found: Report) -> None:
    table = found.table("mai-against-others")
    others = [row[2] for row in table.rows if row[1] == "MAI 8B + 2B-R"]
    assert len(others) == len(set(others)) == 8
    assert ("MAI 8B + 2B-R(S2)", "MAI 8B + 2B-R") not in [(row[1], row[2]) for row in table.rows]
    (row,) = [row for row in table.rows if row[1:3] == ("MAI 8B + 2B-R", "2B-S")]
    only_mai = sum(FINAL[id(one)] == one.gold != one.small for one in DOCUMENTS)
    only_small = sum(one.small == one.gold != FINAL[id(one)] for one in DOCUMENTS)
    assert row[7:9] == (only_mai, only_small)


def test_score_and_cost_of_a_method_are_averages_over_its_calls(found: Report) -> None:
    row = row_of(found.table("methods"), *MAI)
    small = (4 * 40 + 100 * len(LATER)) / 40
    large = (4 * 40 + 5 * len(TRANSFER)) / 40
    assert (row["small tokens"], row["large tokens"]) == (pytest.approx(small), pytest.approx(large))
    right = sum(FINAL[id(one)] == one.gold for one in DOCUMENTS)
    assert row["right per 1,000 tokens"] == pytest.approx(1000 * right / (40 * (small + large)))
    assert (row["wall seconds"], row["right per wall second"]) == (pytest.approx(9 / 40), pytest.approx(right / 9))
    calls = 2 * 40 + len(LATER) + len(TRANSFER)
    assert row["call seconds"] == pytest.approx(0.25 * calls / 40)


def test_another_model_is_compared_and_has_its_tokens_without_a_trace(tmp_path: Path) -> None:
    WORLD.write(tmp_path, "cascade")
    lines = [line(doc_id, one.gold, "yes", float(one.gold == "yes")) for doc_id, one in enumerate(DOCUMENTS)]
    for one in lines:
        one["token_counts"] = [{"input_tokens": 9, "output_tokens": 3}]
        one["pope_f1_score"] = {"prediction": "yes", "ground_truth": one["target"]}
    write_run(tmp_path, "pope", lines, model="qwen3_vl", model_args="pretrained=a/big", time="20260102_000000")
    found = report([tmp_path])
    row = row_of(found.table("methods"), "POPE", "big, own prompt")
    assert (row["small tokens"], row["large tokens"], row["all tokens"]) == (None, None, 3.0)
    (compared,) = [row for row in found.table("mai-against-others").rows if row[2] == "big, own prompt"]
    assert compared[8] == sum(one.gold == "yes" != FINAL[id(one)] for one in DOCUMENTS)
    assert row_of(found.table("scores"), "POPE", "big")["own prompt"] is not None


def test_kinds_of_questions_are_sorted_by_mais_loss(found: Report) -> None:
    rows = [row for row in found.table("kinds").rows if row[1] == "MAI 8B + 2B-R"]
    assert {row[2] for row in rows} == {"gold: yes", "gold: no"}
    assert [value(row[6]) for row in rows] == sorted(value(row[6]) for row in rows)
    for row in rows:
        documents = [one for one in DOCUMENTS if f"gold: {one.gold}" == row[2]]
        mai = percent(FINAL[id(one)] == one.gold for one in documents)
        large = percent(one.large == one.gold for one in documents)
        assert row[3:6] == (len(documents), pytest.approx(mai), pytest.approx(large))
        assert row[10] >= row[9]  # type: ignore[operator]


def test_unreadable_answers_are_counted_by_model_and_prompt(found: Report) -> None:
    table = found.table("unreadable")
    assert value(row_of(table, "POPE", "2B-S", "final")["unreadable, %"]) == percent(not o.small for o in DOCUMENTS)
    assert value(row_of(table, "POPE", "8B-R", "final")["unreadable, %"]) == percent(
        not one.large_thought for one in DOCUMENTS
    )
    thinking = row_of(table, *MAI, "small model's thinking")
    assert (thinking["n"], value(thinking["unreadable, %"])) == (
        len(LATER),
        pytest.approx(percent(not one.thought for one in LATER)),
    )


def test_answers_that_a_limit_cut_off_are_counted(tmp_path: Path) -> None:
    calls = [call("large", "think", "Let me", finish_reason="length"), call("large", "stage2", "yes")]
    lines = [line(0, "yes", "yes", 1.0, exit="large", readable=True, answers=[], calls=calls)]
    lines.append(line(1, "yes", "yes", 1.0, exit="large", readable=True, answers=[], calls=calls[1:]))
    write_run(tmp_path, "pope_r_s2", lines, mode="large", mai={"benchmark": "pope", "variant": "r_s2"})
    (row,) = report([tmp_path]).table("unreadable").rows
    assert value(row[5]) == 50.0


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
    world.write(folder, "cascade", suffix)
    if full_rt:
        world.write(folder, "transfer", time="20260102_000000")
    other = dataclasses.replace(world, agree=agree)
    other.write(folder / "other", "cascade", suffix)
    runs = read([folder]).runs
    run, expected = (next(one for one in runs if (one.file.parent.name == "other") is flag) for flag in (False, True))
    transfers = {one.doc_id: one for one in runs if one.method.mode == "transfer" for one in one.documents}
    outcome = recompute(run, rules, transfers)
    assert outcome is not None
    exits = [one.exit for one in expected.documents]
    assert exits != [one.exit for one in run.documents]
    assert outcome.exits == {exit: exits.count(exit) for exit in outcome.exits}
    assert outcome.tokens == sum(one.output_tokens or 0 for one in expected.documents) / 4
    assert outcome.score.n == 4


def test_a_stricter_rule_is_left_out_without_full_rt(tmp_path: Path, task_manager: Any) -> None:
    loose = dataclasses.replace(PAGES, agree=close(0.6))
    loose.write(tmp_path, "cascade", model_args="anls_threshold=0.6")
    ((_, outcomes),) = curves(Evidence(read([tmp_path]).runs))
    assert [one.rules.anls_threshold for one in outcomes] == [0.5, 0.6]
    assert [one.is_run for one in outcomes] == [False, True]
    rows = report([tmp_path]).table("rules").rows
    assert [row[2:4] for row in rows] == [("anls_threshold=0.5", None), ("anls_threshold=0.6", "yes")]
