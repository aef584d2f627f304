"""The tables of every report: which interval or test each cell has, of which rows. test_intervals.py checks those."""

from itertools import combinations
from pathlib import Path

import pandas as pd
import pytest
from support.folders import RUNS, WORLD, line, shapes_world, write_all, write_run
from support.tables import report, row_of, rows_of

from lmms_eval_mai.analysis.intervals import Estimate, holm, mcnemar, paired_share_difference, share
from lmms_eval_mai.analysis.report import Report
from lmms_eval_mai.contract import SIDES

Made = tuple[dict[str, pd.DataFrame], Report]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """What each run did with 150 questions, by the name of its method, and the report."""
    world, runs = shapes_world(5 * [0.6], seed=0, number=150), {}
    for name, run in RUNS.items():
        rows = [
            {
                "right": trace.text == one.gold,
                "exit": trace.exit,
                **{side: sum(call.output_tokens for call in trace.calls if call.key.side == side) for side in SIDES},
            }
            for trace, one in zip(world.traces(*run), world.documents, strict=True)
        ]
        runs[name] = pd.DataFrame(rows)
    folder = tmp_path_factory.mktemp("runs")
    write_all(world, folder)
    return runs, report([folder], ())


def shared(flags: pd.Series) -> Estimate:
    return share(int(flags.sum()), len(flags)).percent()


def test_methods_have_the_shares_of_right_answers_and_the_tokens(made: Made) -> None:
    runs, found = made
    for row in (table := rows_of(found.table("methods"))):
        run = runs[row["method"]]
        assert row["score"] == shared(run.right)
        assert [row["small tokens"], row["large tokens"]] == pytest.approx(list(run[[*SIDES]].mean()))
    assert {row["method"] for row in table} == set(runs)


def test_each_exit_has_its_share_and_the_scores_of_all_on_its_documents(made: Made) -> None:
    runs, found = made
    for row in (table := rows_of(found.table("exits"))):
        run = runs[row["method"]]
        here = run.exit == row["exit"]
        assert (row["n"], row["share"], row["score"]) == (here.sum(), shared(here), shared(run.right[here]))
        for name in ("large S", "Full RT", "large R"):
            assert row[f"{name} there"] == shared(runs[name].right[here])
    assert [row["method"] for row in table] == ["MAI"] * 3 + ["MAI R(S2)"] * 3


def test_differences_are_paired_and_their_p_are_adjusted_for_all_pairs(made: Made) -> None:
    runs, found = made
    only = {(one, other): int((runs[one].right & ~runs[other].right).sum()) for one in runs for other in runs}
    pairs = [*combinations(runs, 2)]
    p = dict(zip(map(frozenset, pairs), holm([mcnemar(only[a, b], only[b, a]) for a, b in pairs]), strict=True))
    for row in (table := rows_of(found.table("differences"))):
        pair = row["method"], row["against"]
        better, worse = only[pair], only[pair[::-1]]
        assert (row["only this"], row["only other"], row["p"]) == (better, worse, pytest.approx(p[frozenset(pair)]))
        assert row["difference"] == paired_share_difference(better, worse, 150).percent()
    assert len(table) == 8 + 7


def test_another_model_is_compared_and_has_its_tokens_without_a_trace(tmp_path: Path) -> None:
    WORLD.write(tmp_path, "mai")
    golds, answers = [one.gold for one in WORLD.documents], [trace.text for trace in WORLD.traces("mai")]
    lines = [
        line(doc_id, gold, "yes", float(gold == "yes"), pope_f1_score={"prediction": "yes", "ground_truth": gold})
        | {"token_counts": [{"input_tokens": 9, "output_tokens": 3}]}
        for doc_id, gold in enumerate(golds)
    ]
    write_run(tmp_path, "pope", lines, model="qwen3_vl", model_args="pretrained=a/big", time="20260102_000000")
    found = report([tmp_path], ("6",))
    row = row_of(found.table("methods"), "POPE", "big, own prompt")
    assert (row["small tokens"], row["large tokens"]) == (None, 3.0)
    (compared,) = [row for row in found.table("differences").rows if row[2] == "big, own prompt"]
    assert compared[6] == sum(gold == "yes" != answer for gold, answer in zip(golds, answers, strict=True))
    assert row_of(found.table("tables-6-7-14"), "POPE", "big, own prompt")["score"]
