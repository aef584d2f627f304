"""The tables of every report are recomputed from the answers, one document at a time."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.folders import line, write_run
from support.tables import row_of, value
from support.worlds import WORLD, exit_of, final

from lmms_eval_mai.reports.build import report
from lmms_eval_mai.reports.report import Report
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


def test_agreement_has_precision_recall_and_base_rate(found: Report) -> None:
    row = row_of(found.table("agreement"), *MAI, "short")
    right = [one for one in DOCUMENTS if one.large == one.gold]
    accepted = [one for one in AGREE_SHORT if one.large == one.gold]
    errors, errors_accepted = N - len(right), len(AGREE_SHORT) - len(accepted)
    assert value(row["agree"]) == pytest.approx(100 * len(AGREE_SHORT) / N)
    assert value(row["precision"]) == pytest.approx(100 * len(accepted) / len(AGREE_SHORT))
    assert value(row["base rate"]) == pytest.approx(100 * len(right) / N)
    assert value(row["recall"]) == pytest.approx(100 * len(accepted) / len(right))
    assert value(row["errors accepted"]) == pytest.approx(100 * errors_accepted / errors)
    row = row_of(found.table("agreement"), *MAI, "think")
    assert row["n"] == len(LATER)
    assert value(row["agree"]) == pytest.approx(100 * len(AGREE_THINK) / len(LATER))


def test_harm_and_rescue_count_the_documents_that_the_transfer_changes(found: Report) -> None:
    for name, documents in (("MAI 8B + 2B-R", TRANSFER), ("Full RT 8B + 2B-R", DOCUMENTS)):
        row = row_of(found.table("harm-and-rescue"), "POPE", name)
        lost = sum(one.large == one.gold != one.transferred for one in documents)
        won = sum(one.transferred == one.gold != one.large for one in documents)
        assert (row["n"], row["lost"], row["won"]) == (len(documents), lost, won)
        assert row["net"] == won - lost
        assert value(row["rescue"]) == pytest.approx(100 * won / sum(one.large != one.gold for one in documents))
    rows = (row_of(found.table("harm-and-rescue"), "POPE", name) for name in ("MAI 8B + 2B-R", "Full RT 8B + 2B-R"))
    agreed = [*AGREE_SHORT, *AGREE_THINK]  # wrong answers that agreement accepted and Full RT has right
    lost = sum(one.transferred == one.gold != one.large for one in agreed)
    assert lost > 0 and [row["lost by checks"] for row in rows] == [lost, None]


def test_harm_of_a_cascade_is_against_its_own_short_answers(tmp_path: Path) -> None:
    WORLD.write(tmp_path, "cascade")
    before = row_of(report([tmp_path]).table("harm-and-rescue"), *MAI)
    # The answers are sampled, and those of another run of the large model differ.
    others = [dataclasses.replace(one, large="no" if one.large == "yes" else "yes") for one in DOCUMENTS]
    dataclasses.replace(WORLD, documents=others).write(tmp_path, "large", time="20260102_000000")
    assert row_of(report([tmp_path]).table("harm-and-rescue"), *MAI) == before


def test_mai_is_compared_with_each_other_method_once(found: Report) -> None:
    table = found.table("comparisons")
    others = [row[2] for row in table.rows if row[1] == "MAI 8B + 2B-R"]
    assert len(others) == len(set(others)) == 8
    assert ("MAI 8B + 2B-R(S2)", "MAI 8B + 2B-R") not in [(row[1], row[2]) for row in table.rows]
    (row,) = [row for row in table.rows if row[1:3] == ("MAI 8B + 2B-R", "2B-S")]
    only_mai = sum(final(one) == one.gold != one.small for one in DOCUMENTS)
    only_small = sum(one.small == one.gold != final(one) for one in DOCUMENTS)
    assert row[5:7] == (only_mai, only_small)


def test_score_and_cost_of_a_method_are_averages_over_its_calls(found: Report) -> None:
    row = row_of(found.table("methods"), *MAI)
    small = (4 * N + 100 * len(LATER)) / N
    large = (4 * N + 5 * len(TRANSFER)) / N
    assert (row["small tokens"], row["large tokens"]) == (pytest.approx(small), pytest.approx(large))
    assert row["wall s"] == pytest.approx(9 / N)
    for exit, documents in (("agree_short", AGREE_SHORT), ("agree_think", AGREE_THINK), ("transfer", TRANSFER)):
        assert value(row[exit]) == pytest.approx(100 * len(documents) / N)


def test_another_model_is_compared_and_has_its_tokens_without_a_trace(tmp_path: Path) -> None:
    WORLD.write(tmp_path, "cascade")
    lines = [line(doc_id, one.gold, "yes", float(one.gold == "yes")) for doc_id, one in enumerate(DOCUMENTS)]
    for one in lines:
        one["token_counts"] = [{"input_tokens": 9, "output_tokens": 3}]
        one["pope_f1_score"] = {"prediction": "yes", "ground_truth": one["target"]}
    write_run(tmp_path, "pope", lines, model="qwen3_vl", model_args="pretrained=a/big", time="20260102_000000")
    found = report([tmp_path])
    row = row_of(found.table("methods"), "POPE", "big, own prompt")
    assert (row["small tokens"], row["large tokens"]) == (None, 3.0)
    (compared,) = [row for row in found.table("comparisons").rows if row[2] == "big, own prompt"]
    assert compared[6] == sum(one.gold == "yes" != final(one) for one in DOCUMENTS)
    assert row_of(found.table("tables-6-7-14"), "POPE", "big")["own prompt"] is not None


def test_p_of_a_cascade_is_adjusted_for_the_number_of_methods(found: Report) -> None:
    rows = [row for row in found.table("comparisons").rows if row[1] == "MAI 8B + 2B-R"]
    assert [row[8] for row in rows] == pytest.approx(holm([row[7] for row in rows]))  # type: ignore[misc]
