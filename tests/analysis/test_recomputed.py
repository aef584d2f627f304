"""The tables of a report against a recomputation from the lines of the samples files, with pandas and scipy only."""

import dataclasses
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy import stats
from support.folders import Answers, World
from support.tables import report
from support.worlds import write_all

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
    "mai shapes_s": "MAI big + tiny-R",
    "mai shapes_r_s2": "MAI big + tiny-R(S2)",
    "full_rt shapes_s": "Full RT big + tiny-R",
    **{
        f"{side} shapes_{suffix}": f"{model}-{prompt}"
        for side, model in (("small", "tiny"), ("large", "big"))
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


def test_methods_have_the_shares_of_right_answers_the_tokens_and_the_exits(made: Any) -> None:
    runs, found = made
    assert {row["method"] for row in rows(found, "methods")} == set(runs)
    for row in rows(found, "methods"):
        lines = runs[row["method"]]
        assert estimate(row, "score") == near(wilson(lines.right))
        assert [row["small_tokens"], row["large_tokens"]] == near([lines.small.mean(), lines.large.mean()])
        for exit in ("agree_short", "agree_think", "transfer") if row["method"].startswith("MAI") else ():
            assert row[exit] == near(100 * (lines.exit == exit).mean())


def test_comparisons_have_the_paired_difference_and_mcnemars_p(made: Any) -> None:
    runs, found = made
    compared = rows(found, "comparisons")
    assert len(compared) == 8 + 7
    for cascade, group in pd.DataFrame(compared).groupby("cascade"):
        p = []
        for row in group.to_dict("records"):
            mine, other = runs[cascade].right, runs[row["against"]].right
            better, worse, n = (mine & ~other).sum(), (other & ~mine).sum(), len(mine)
            assert (row["only_cascade_right"], row["only_other_right"]) == (better, worse)
            middle = (better - worse) / (n + 2)
            error = math.sqrt(better + worse + 1 - (better - worse) ** 2 / (n + 2)) / (n + 2)
            ends = [100 * (middle + sign * 1.959963985 * error) for sign in (-1, 1)]
            assert estimate(row, "difference") == pytest.approx([100 * (better - worse) / n, *ends], abs=1e-6)
            p.append(stats.binomtest(int(better), int(better + worse)).pvalue if better + worse else 1.0)
            assert row["p"] == near(p[-1])
        assert group.p_adjusted.tolist() == near(holm(p))
