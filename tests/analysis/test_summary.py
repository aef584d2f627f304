"""The tables of every report where runs are sampled, or of another model; test_recomputed.py has the others."""

import dataclasses
from pathlib import Path

import pytest
from support.folders import Answers, line, write_run
from support.tables import row_of
from support.worlds import WORLD, final

from lmms_eval_mai.analysis.tables.build import report
from lmms_eval_mai.method.methods import MAI as MAI_METHOD
from lmms_eval_mai.method.methods import Ask, Method, Stop

DOCUMENTS = WORLD.documents
MAI = ("POPE", "MAI 8B + 2B-R")


def test_harm_of_a_cascade_is_against_its_own_short_answers(tmp_path: Path) -> None:
    WORLD.write(tmp_path, "mai")
    before = row_of(report([tmp_path], ()).table("harm-and-rescue"), *MAI)
    # The answers are sampled, and those of another run of the large model differ.
    others = [dataclasses.replace(one, large="no" if one.large == "yes" else "yes") for one in DOCUMENTS]
    dataclasses.replace(WORLD, documents=others).write(tmp_path, "large", time="20260102_000000")
    assert row_of(report([tmp_path], ()).table("harm-and-rescue"), *MAI) == before


def test_another_model_is_compared_and_has_its_tokens_without_a_trace(tmp_path: Path) -> None:
    WORLD.write(tmp_path, "mai")
    lines = [line(doc_id, one.gold, "yes", float(one.gold == "yes")) for doc_id, one in enumerate(DOCUMENTS)]
    for one in lines:
        one["token_counts"] = [{"input_tokens": 9, "output_tokens": 3}]
        one["pope_f1_score"] = {"prediction": "yes", "ground_truth": one["target"]}
    write_run(tmp_path, "pope", lines, model="qwen3_vl", model_args="pretrained=a/big", time="20260102_000000")
    found = report([tmp_path], ("6",))
    row = row_of(found.table("methods"), "POPE", "big, own prompt")
    assert (row["small tokens"], row["large tokens"]) == (None, 3.0)
    (compared,) = [row for row in found.table("comparisons").rows if row[2] == "big, own prompt"]
    assert compared[6] == sum(one.gold == "yes" != final(one) for one in DOCUMENTS)
    assert row_of(found.table("tables-6-7-14"), "POPE", "big, own prompt")["score"]


def test_a_stop_that_also_asks_how_sure_a_model_is_accepts_only_answers_that_it_is_sure_of(tmp_path: Path) -> None:
    first = Stop("sure", "large.simple", ("small.simple", "large.simple"), "large.simple", 0.9)
    method = Method("mine", (MAI_METHOD.steps[0], first, *MAI_METHOD.steps[2:]))
    documents = [
        Answers("yes", "yes", "yes", "no", "yes", probability=0.95),
        Answers("yes", "no", "no", "yes", "yes", probability=0.5),  # they agree, and the large model is not sure
        Answers("yes", "no", "yes", "no", "yes"),
    ]
    dataclasses.replace(WORLD, documents=documents).write(tmp_path, method)
    (row,) = [row for row in report([tmp_path], ()).table("agreement").rows if row[2] == "sure"]
    agree, precision, _, recall, accepted = (cell.value for cell in row[4:])
    assert (row[3], agree, precision, recall, accepted) == (3, pytest.approx(100 / 3), 100, 50, 0)


def test_only_answers_that_passed_a_check_are_lost_by_checks(tmp_path: Path) -> None:
    last = (Ask("large", "think"), Stop("large_think", "large.think"))  # a stop without a condition
    documents = [
        Answers("yes", "no", "no", "yes", "yes", "yes"),
        Answers("yes", "no", "yes", "yes", "yes", "no"),
    ]
    world = dataclasses.replace(WORLD, documents=documents)
    world.write(tmp_path, Method("mine", (*MAI_METHOD.steps[:2], *last)))
    world.write(tmp_path, "full_rt", time="20260102_000000")
    row = row_of(report([tmp_path], ()).table("harm-and-rescue"), "POPE", "mine 8B + 2B-R")
    assert row["lost by checks"] == 1
