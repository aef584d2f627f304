"""The tables of a report against a recomputation from the lines of the samples files, with pandas and scipy only."""

import dataclasses
import json
import math
import random
from collections.abc import Iterator
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy import stats
from support.folders import Answers, World, write_all
from support.tables import report

from lmms_eval_mai.analysis.intervals import holm
from lmms_eval_mai.analysis.report import Report, frame

Row = dict[str, Any]


def world(seed: int) -> World:
    """Return 150 questions with made-up answers of both models."""
    chance = random.Random(seed)

    def answers() -> Answers:
        gold, *others = (chance.choice(["red", "blue", "green"]) for _ in range(6))
        right = (gold if chance.random() < 0.6 else other for other in others)
        return dataclasses.replace(Answers(gold, *right), probability=round(chance.uniform(0.2, 1), 3))

    return World("shapes", [answers() for _ in range(150)], small="org/tiny", large="org/big")


def lines_of(folder: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the method and the task of each run, and one row for each of its lines."""
    for file in sorted(folder.rglob("*_samples_*.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        yield (
            f"{lines[0]['token_counts'][0]['method']} {file.stem.partition('_samples_')[2]}",
            pd.DataFrame(map(row_of_line, lines)).set_index("doc_id"),
        )


def row_of_line(line: Row) -> Row:
    trace = line["token_counts"][0]
    tokens = {side: sum(call["output_tokens"] for call in trace["calls"] if call["side"] == side) for side in SIDES}
    score = float(line.get("score", line.get("exact_match")))
    return {
        "doc_id": line["doc_id"],
        "right": score == 1,
        "exit": trace["exit"],
        **tokens,
    }


SIDES = ("small", "large")
NAMES = {
    "mai shapes_s": "MAI",
    "mai shapes_r_s2": "MAI R(S2)",
    "full_rt shapes_s": "Full RT",
    **{
        f"{side} shapes_{suffix}": f"{side} {prompt}"
        for side in SIDES
        for suffix, prompt in (("s", "S"), ("r", "R"), ("r_s2", "R(S2)"))
    },
}


def wilson(flags: pd.Series) -> list[float]:
    """Return the share of true values in percent, and the ends of its interval."""
    ends = stats.binomtest(int(flags.sum()), len(flags)).proportion_ci(method="wilson")
    return [100 * float(flags.mean()), 100 * ends.low, 100 * ends.high]


def estimate(row: Row, key: str) -> list[float]:
    return [row[key], row[f"{key}_low"], row[f"{key}_high"]]


def near(expected: Any) -> Any:
    return pytest.approx(expected, abs=1e-9)


@pytest.fixture(scope="module", params=range(2))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Report]:
    """The lines of all runs by the name of their method, and the report."""
    folder = tmp_path_factory.mktemp("runs")
    write_all(world(request.param), folder)
    return {NAMES[name]: lines for name, lines in lines_of(folder)}, report([folder], ())


def rows(found: Report, key: str) -> list[Row]:
    return frame(found.table(key)).to_dict("records")  # type: ignore[return-value]


def test_methods_have_the_shares_of_right_answers_and_the_tokens(made: Any) -> None:
    runs, found = made
    assert {row["method"] for row in rows(found, "methods")} == set(runs)
    for row in rows(found, "methods"):
        lines = runs[row["method"]]
        assert estimate(row, "score") == near(wilson(lines.right))
        assert [row["small_tokens"], row["large_tokens"]] == near([lines.small.mean(), lines.large.mean()])


def test_each_exit_has_its_share_and_the_scores_of_all_on_its_documents(made: Any) -> None:
    runs, found = made
    others = {"large_s_there": "large S", "full_rt_there": "Full RT", "large_r_there": "large R"}
    seen = {name: 0 for name in runs if name.startswith("MAI")}
    for row in rows(found, "exits"):
        lines = runs[row["method"]]
        here = lines.exit == row["exit"]
        assert (row["n"], estimate(row, "share")) == (here.sum(), near(wilson(here)))
        assert estimate(row, "score") == near(wilson(lines.right[here]))
        for column, name in others.items():
            assert estimate(row, column) == near(wilson(runs[name].right[here]))
        seen[row["method"]] += row["n"]
    assert set(seen.values()) == {150}


def test_differences_are_paired_with_mcnemars_p(made: Any) -> None:
    runs, found = made
    compared = rows(found, "differences")
    assert len(compared) == 8 + 7
    pairs = [frozenset(pair) for pair in combinations(runs, 2)]
    numbers = [
        [int((runs[one].right & ~runs[other].right).sum()) for one, other in permutations(pair)] for pair in pairs
    ]
    p = holm([stats.binomtest(better, better + worse).pvalue if better + worse else 1.0 for better, worse in numbers])
    for row in compared:
        mine, other = runs[row["method"]].right, runs[row["against"]].right
        better, worse, n = (mine & ~other).sum(), (other & ~mine).sum(), len(mine)
        assert (row["only_this"], row["only_other"]) == (better, worse)
        middle = (better - worse) / (n + 2)
        error = math.sqrt(better + worse + 1 - (better - worse) ** 2 / (n + 2)) / (n + 2)
        ends = [100 * (middle + sign * 1.959963985 * error) for sign in (-1, 1)]
        assert estimate(row, "difference") == pytest.approx([100 * (better - worse) / n, *ends], abs=1e-6)
        assert row["p"] == near(p[pairs.index(frozenset((row["method"], row["against"])))])
