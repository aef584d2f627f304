"""The tables that the paper lacks are recomputed from the answers, one document at a time."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.folders import Answers, World, call, line, write_run
from support.tables import row_of, value
from support.worlds import WORLD, exit_of, final

from lmms_eval_mai.reports.build import report
from lmms_eval_mai.reports.report import Report, Table
from lmms_eval_mai.statistics import holm

DOCUMENTS = WORLD.documents
N = len(DOCUMENTS)
MAI = ("POPE", "MAI 8B + 2B-R")


def percent(flags: Any) -> float:
    flags = list(flags)
    return 100 * sum(flags) / len(flags)


AGREE_SHORT, AGREE_THINK, TRANSFER = (
    [one for one in DOCUMENTS if exit_of(one) == exit] for exit in ("agree_short", "agree_think", "transfer")
)
LATER = [*AGREE_THINK, *TRANSFER]
ANSWERS: dict[str, Callable[[Answers], str]] = {
    "MAI": final,
    "small S": lambda one: one.small,
    "large S": lambda one: one.large,
    "Full RT": lambda one: one.transferred,
}


def test_accuracy_by_exit_is_beside_that_of_the_other_methods_on_the_same_documents(found: Report) -> None:
    table = found.table("accuracy-by-exit")
    for exit, documents in (("agree_short", AGREE_SHORT), ("agree_think", AGREE_THINK), ("transfer", TRANSFER)):
        assert documents
        row = row_of(table, *MAI, exit)
        assert row["n"] == len(documents)
        for name, answer in ANSWERS.items():
            right = percent(answer(one) == one.gold for one in documents)
            assert value(row[name]) == pytest.approx(right), name


def test_agreement_has_precision_recall_and_base_rate_of_all_and_of_each_kind(found: Report) -> None:
    row = row_of(found.table("agreement"), *MAI, "short", "all kinds")
    right = [one for one in DOCUMENTS if one.large == one.gold]
    accepted = [one for one in AGREE_SHORT if one.large == one.gold]
    errors, errors_accepted = N - len(right), len(AGREE_SHORT) - len(accepted)
    assert value(row["agree, %"]) == pytest.approx(100 * len(AGREE_SHORT) / N)
    assert value(row["right if they agree, %"]) == pytest.approx(100 * len(accepted) / len(AGREE_SHORT))
    assert value(row["large S right, %"]) == pytest.approx(100 * len(right) / N)
    assert value(row["right answers accepted, %"]) == pytest.approx(100 * len(accepted) / len(right))
    assert (row["errors of large S"], row["errors accepted"]) == (errors, errors_accepted)
    assert value(row["errors accepted, %"]) == pytest.approx(100 * errors_accepted / errors)
    row = row_of(found.table("agreement"), *MAI, "think", "all kinds")
    assert row["compared"] == len(LATER)
    assert value(row["agree, %"]) == pytest.approx(100 * len(AGREE_THINK) / len(LATER))
    for gold in ("yes", "no"):
        row = row_of(found.table("agreement"), *MAI, "short", f"gold: {gold}")
        assert row["compared"] == sum(one.gold == gold for one in DOCUMENTS)
        agreed = percent(one.large == gold for one in AGREE_SHORT if one.gold == gold)
        assert value(row["right if they agree, %"]) == pytest.approx(agreed)


def test_harm_and_rescue_count_the_documents_that_the_transfer_changes(found: Report) -> None:
    for name, documents in (("MAI 8B + 2B-R", TRANSFER), ("Full RT 8B + 2B-R", DOCUMENTS)):
        row = row_of(found.table("harm-and-rescue"), "POPE", name)
        lost = sum(one.large == one.gold != one.transferred for one in documents)
        won = sum(one.transferred == one.gold != one.large for one in documents)
        assert (row["transferred"], row["of these lost"], row["of these won"]) == (len(documents), lost, won)
        assert row["net"] == won - lost
        assert value(row["rescue, %"]) == pytest.approx(100 * won / sum(one.large != one.gold for one in documents))
    rows = (row_of(found.table("harm-and-rescue"), "POPE", name) for name in ("MAI 8B + 2B-R", "Full RT 8B + 2B-R"))
    agreed = [*AGREE_SHORT, *AGREE_THINK]  # wrong answers that agreement accepted and Full RT has right
    lost = sum(one.transferred == one.gold != one.large for one in agreed)
    assert lost > 0 and [row["lost by the checks"] for row in rows] == [lost, None]


def test_harm_of_a_cascade_is_against_its_own_short_answers(tmp_path: Path) -> None:
    WORLD.write(tmp_path, "cascade")
    before = row_of(report([tmp_path]).table("harm-and-rescue"), *MAI)
    # The answers are sampled, and those of another run of the large model differ.
    others = [dataclasses.replace(one, large="no" if one.large == "yes" else "yes") for one in DOCUMENTS]
    dataclasses.replace(WORLD, documents=others).write(tmp_path, "large", time="20260102_000000")
    assert row_of(report([tmp_path]).table("harm-and-rescue"), *MAI) == before


def test_the_random_router_has_mais_cost_and_the_oracle_the_better_score(found: Report) -> None:
    row = row_of(found.table("routers"), *MAI, "8B-S", "Full RT 8B + 2B-R", "output tokens")
    tokens = (8 * N + 100 * len(LATER) + 5 * len(TRANSFER)) / N
    assert row["cost"] == pytest.approx(tokens)
    chosen = (tokens - 4) / (105 - 4)
    assert row["random: expensive, %"] == pytest.approx(100 * chosen)
    cheap = percent(one.large == one.gold for one in DOCUMENTS)
    expensive = percent(one.transferred == one.gold for one in DOCUMENTS)
    assert row["random"] == pytest.approx((1 - chosen) * cheap + chosen * expensive)
    mai = percent(final(one) == one.gold for one in DOCUMENTS)
    assert row["MAI"] == pytest.approx(mai)
    assert value(row["MAI - random, points"]) == pytest.approx(mai - row["random"])
    assert row["oracle"] == pytest.approx(percent(one.gold in (one.large, one.transferred) for one in DOCUMENTS))
    changed = sum(one.transferred == one.gold != one.large for one in DOCUMENTS)
    assert row["oracle cost"] == pytest.approx((105 * changed + 4 * (N - changed)) / N)


def test_routers_of_equal_tokens_and_of_equal_compute_can_have_opposite_conclusions(tmp_path: Path) -> None:
    # Of ten documents, MAI thinks on eight with the small model. It has two wrong, large S four, large R none.
    ten = [("A", "A", "A")] * 2 + [("B", "A", "A")] * 4 + [("B", "C", "C")] * 2 + [("B", "C", "D")] * 2
    world = World("realworldqa", [Answers("A", *answers, "A", "A") for answers in ten * 20])
    sizes = {side: dict.fromkeys(("text", "output", "vision"), size) for side, size in (("small", 1), ("large", 100))}
    parameters = {side: {**found, "patches": 4, "merger": 0} for side, found in sizes.items()}
    for day, (mode, suffix) in enumerate((("cascade", "s"), ("large", "s"), ("large", "r")), start=1):
        world.write(tmp_path, mode, suffix, time=f"2026010{day}_000000", parameters=parameters)
    for file in tmp_path.glob("*_samples_*"):
        file.write_text(file.read_text().replace('"prompt_tokens": 300', '"prompt_tokens": 20, "image_tokens": 2'))
    table = report([tmp_path]).table("routers")
    row = ("RealWorldQA", "MAI 8B + 2B-R", "8B-S", "8B-R")
    tokens, compute = (row_of(table, *row, cost) for cost in ("output tokens", "compute (GFLOP)"))
    # A call of the large model: 20 tokens of prompt with 8 patches, and its output tokens, which count twice.
    short, long, transfer = (100 * (20 + 8 + 2 * output) for output in (4, 100, 5))
    mai = short + 0.2 * transfer + (20 + 8 + 2 * 4) + 0.8 * (20 + 8 + 2 * 100)
    assert (tokens["cost"], compute["cost"]) == (pytest.approx(4 + 4 + 80 + 1), pytest.approx(2e-9 * mai))
    assert compute["random: expensive, %"] == pytest.approx(100 * (mai - short) / (long - short))
    assert tokens["MAI - random, points"].high < 0 < compute["MAI - random, points"].low


def test_mai_is_compared_with_each_other_method_once(found: Report) -> None:
    table = found.table("mai-against-others")
    others = [row[2] for row in table.rows if row[1] == "MAI 8B + 2B-R"]
    assert len(others) == len(set(others)) == 8
    assert ("MAI 8B + 2B-R(S2)", "MAI 8B + 2B-R") not in [(row[1], row[2]) for row in table.rows]
    (row,) = [row for row in table.rows if row[1:3] == ("MAI 8B + 2B-R", "2B-S")]
    only_mai = sum(final(one) == one.gold != one.small for one in DOCUMENTS)
    only_small = sum(one.small == one.gold != final(one) for one in DOCUMENTS)
    assert row[7:9] == (only_mai, only_small)


def test_score_and_cost_of_a_method_are_averages_over_its_calls(found: Report) -> None:
    row = row_of(found.table("methods"), *MAI)
    small = (4 * N + 100 * len(LATER)) / N
    large = (4 * N + 5 * len(TRANSFER)) / N
    assert (row["small output tokens"], row["large output tokens"]) == (pytest.approx(small), pytest.approx(large))
    right = sum(final(one) == one.gold for one in DOCUMENTS)
    assert row["right per 1,000 output tokens"] == pytest.approx(1000 * right / (N * (small + large)))
    assert (row["wall seconds"], row["right per wall second"]) == (pytest.approx(9 / N), pytest.approx(right / 9))
    calls = 2 * N + len(LATER) + len(TRANSFER)
    assert row["call seconds"] == pytest.approx(0.25 * calls / N)
    small_s = row_of(found.table("methods"), "POPE", "2B-S")
    assert value(small_s["unreadable, %"]) == percent(not one.small for one in DOCUMENTS) > 0


def test_another_model_is_compared_and_has_its_tokens_without_a_trace(tmp_path: Path) -> None:
    WORLD.write(tmp_path, "cascade")
    lines = [line(doc_id, one.gold, "yes", float(one.gold == "yes")) for doc_id, one in enumerate(DOCUMENTS)]
    for one in lines:
        one["token_counts"] = [{"input_tokens": 9, "output_tokens": 3}]
        one["pope_f1_score"] = {"prediction": "yes", "ground_truth": one["target"]}
    write_run(tmp_path, "pope", lines, model="qwen3_vl", model_args="pretrained=a/big", time="20260102_000000")
    found = report([tmp_path])
    row = row_of(found.table("methods"), "POPE", "big, own prompt")
    assert [row[f"{name}output tokens"] for name in ("small ", "large ", "")] == [None, None, 3.0]
    (compared,) = [row for row in found.table("mai-against-others").rows if row[2] == "big, own prompt"]
    assert compared[8] == sum(one.gold == "yes" != final(one) for one in DOCUMENTS)
    assert row_of(found.table("scores"), "POPE", "big")["own prompt"] is not None


def kinds(table: Table) -> list[dict[str, Any]]:
    names = [column.title for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows if row[1] == "MAI 8B + 2B-R"]


def test_kinds_of_questions_have_the_scores_of_all_methods_and_the_worst_of_mai_is_first(found: Report) -> None:
    rows = kinds(found.table("kinds"))
    assert {row["kind"] for row in rows} == {"gold: yes", "gold: no"}
    assert rows[0]["MAI"] < rows[1]["MAI"]
    for row in rows:
        documents = [one for one in DOCUMENTS if f"gold: {one.gold}" == row["kind"]]
        for name in ("MAI", "large S", "Full RT"):
            assert row[name] == pytest.approx(percent(ANSWERS[name](one) == one.gold for one in documents)), name
        assert row["large R"] == pytest.approx(percent(one.large_thought == one.gold for one in documents))
        assert row["n"] == len(documents) and row["p, adjusted"] >= row["p"]


def test_kinds_are_the_categories_of_the_data_set_and_p_of_anls_is_adjusted_too(tmp_path: Path) -> None:
    documents = [
        Answers("north", "a", "b" if number % 2 else "north", "c", "north", fields=(("category", name),))
        for name, count in (("maps", 12), ("tables", 8))
        for number in range(count)
    ]
    anls = World("infovqa_val", documents, score=lambda answer, gold: 0.9 if answer == gold else 0.0)
    anls.write(tmp_path, "cascade")
    anls.write(tmp_path, "large", time="20260102_000000")
    rows = kinds(report([tmp_path]).table("kinds"))
    assert sorted(row["kind"] for row in rows) == ["maps", "tables"]
    p = [row["p"] for row in rows]
    assert p[0] != p[1] and [row["p, adjusted"] for row in rows] == pytest.approx(holm(p))


def test_answers_that_a_limit_cut_off_are_counted(tmp_path: Path) -> None:
    calls = [call("large", "think", "Let me", finish_reason="length"), call("large", "stage2", "yes")]
    lines = [line(0, "yes", "yes", 1.0, exit="large", readable=True, answers=[], calls=calls)]
    lines.append(line(1, "yes", "yes", 1.0, exit="large", readable=True, answers=[], calls=calls[1:]))
    write_run(tmp_path, "pope_r_s2", lines, mode="large", mai={"benchmark": "pope", "variant": "r_s2"})
    row = row_of(report([tmp_path]).table("methods"), "POPE")
    assert (value(row["cut off, %"]), value(row["unreadable, %"])) == (50, 0)
