"""experiments/latency: its plan against the numbers of the paper, and its scripts on the demo pair."""

import bisect
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.folders import World
from support.pair import Answers

from experiments.latency import plan
from experiments.latency.plan import Plan
from lmms_eval_mai.analysis import paper_numbers
from lmms_eval_mai.analysis.tables import seconds
from lmms_eval_mai.contract import PROMPTS
from lmms_eval_mai.method.methods import MAI

ROOT = Path(__file__).resolve().parents[2]


def given(*options: str) -> Any:
    return plan.parser("").parse_args(options)


def mean_tokens(made: Plan, row: str) -> float:
    """Return the mean length of the thinking of a row over the documents that think."""
    calls = [call for document in made.documents for step in made.calls(plan.read_row(row), document) for call in step]
    thinking = [call.output_tokens for call in calls if PROMPTS[call.prompt].thinks]
    return sum(thinking) / len(thinking)


@pytest.mark.parametrize("benchmark", plan.BENCHMARKS)
def test_hard_questions_think_longer_and_all_together_as_long_as_in_the_paper(benchmark: str) -> None:
    made, hard = plan.plan(benchmark, 1000, given()), plan.HARD_FACTORS[benchmark]
    for x, (side, rows) in itertools.product(
        "ER", {"small": ("full_rt", "mai"), "large": ("large", "own_thinking")}.items()
    ):
        mean = made.lengths[side][x]
        assert mean == paper_numbers.number(5, f"{'2B' if side == 'small' else '8B'}-{x}", benchmark, "tokens")
        assert mean_tokens(made, f"{rows[0]}:{x}") == pytest.approx(mean, rel=0.01)
        assert mean_tokens(made, f"{rows[1]}:{x}") == pytest.approx(hard * mean, rel=0.02)
    equal = plan.plan(benchmark, 1000, given("--hard_factor", "1"))
    assert mean_tokens(equal, "mai") == pytest.approx(made.lengths["small"]["R"], rel=0.02)


@pytest.mark.parametrize("benchmark", plan.BENCHMARKS)
def test_the_factors_of_hard_questions_follow_from_table_11(benchmark: str) -> None:
    def number(table: int, method: str, measure: str) -> float:
        return paper_numbers.number(table, method, benchmark, measure) or 0.0

    small, large = (seconds.papers_profile().models[f"Qwen/Qwen3-VL-{size}-Instruct"].seconds for size in ("2B", "8B"))
    mai, short = "MAI 8B + 2B-R", number(5, "8B-S", "tokens")
    agree, think, transfer = (number(10, mai, f"{exit}, documents") for exit in MAI.exits)
    documents = agree + think + transfer
    shorts_s = documents * (small(512, number(5, "2B-S", "tokens")) + large(512, short))

    def full_rt_s(tokens: float) -> float:
        return documents * float(small(512, tokens) + large(512 + tokens, short))

    def mai_s(tokens: float) -> float:
        return float(shorts_s + (think + transfer) * small(512, tokens) + transfer * large(512 + tokens, short))

    of_all = bisect.bisect(range(10000), number(11, "Full RT 8B + 2B-R", "seconds"), key=full_rt_s)
    of_hard = bisect.bisect(range(10000), number(11, mai, "seconds"), key=mai_s)
    assert plan.HARD_FACTORS[benchmark] == pytest.approx(of_hard / of_all, abs=0.01)


def test_a_plan_by_ones_own_runs_has_their_lengths_exits_and_methods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two runs of a method, the one with the most documents counts."""
    agree, disagree = Answers("red", *4 * ["red"]), Answers("red", "blue", "green", "red", "red")
    few, many = World("shapes", [disagree] * 2), World("shapes", [disagree] * 2 + [agree] * 2)
    for number, (world, method) in enumerate([(few, "mai"), (few, "full_rt"), (many, "mai"), (many, "full_rt")]):
        world.write(tmp_path, method, time=f"20260101_00000{number}")
    monkeypatch.setattr(sys, "argv", ["planned.py", "--from", str(tmp_path), "--methods", "large:R", "mai"])
    found = plan.options_of(plan.parser(""))
    assert (found.exits, found.hard_factor, [row.title for row in found.methods]) == ([50.0, 0.0], 1.0, ["mai"])
    assert [json.loads(lengths) for lengths in found.lengths] == [{"S": 4.0, "R": 100.0}, {"S": 4.0}]
    assert capsys.readouterr().out.endswith("lengths: large:R.\n")


def run(script: str, *options: str) -> str:
    """Run a command of its README.md, with few documents."""
    command = [sys.executable, "-m", f"experiments.latency.{script}", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_calls_give_tables_1_to_4_and_a_profile_for_the_report(tmp_path: Path) -> None:
    options = ("--output_path", str(tmp_path), "--repeats", "1", "--output_tokens", "4", "16")
    printed = run("calls", "--pair", "demo", *options)
    assert [f"## Table {number}" in printed for number in (1, 2, 3, 4)] == [True] * 4
    profile = seconds.read(str(tmp_path / "profile.json"))
    assert [Path(model).name for model in profile.models] == ["small", "large"]
    assert all(times.seconds(128, 16) > 0 for times in profile.models.values())


@pytest.mark.long
def test_table_12_times_each_method_and_drafts_change_no_answer(tmp_path: Path) -> None:
    options = ("--benchmark", "shapes", "--limit", "4", "--open", "1", "--rows", "mai", "hf", "hf-assisted")
    printed = run("table_12", "--pair", "demo", "--output_path", str(tmp_path / "out"), *options)
    names, _, *lines = [line.strip("|").split("|") for line in printed.splitlines() if line.startswith("|")]
    rows = [dict(zip(map(str.strip, names), map(str.strip, line), strict=True)) for line in lines]
    _, alone, assisted = rows
    assert alone["score %"] == assisted["score %"] and [float(row["samples"]) for row in rows] == [4] * 3
    assert float(assisted["forward passes"]) < float(alone["forward passes"])


@pytest.mark.long
def test_a_planned_run_measures_each_method_and_is_predicted_from_its_profile(tmp_path: Path) -> None:
    rows = ("large:S", "mai", "own_thinking:E")
    where = ("--benchmarks", "chartqa", "--pair", "demo", "--px", "160", "120", "--output_path", str(tmp_path))
    printed = run("planned", *where, "--runs", "1:4", "--repeats", "1", "--methods", *rows)
    found = json.loads(printed.splitlines()[-1])
    for name in ("s a document", "predicted", "Eq. 27"):
        assert tuple(found[name]["chartqa, 1"]) == rows
        assert found[name]["chartqa, 1"]["mai"] > found[name]["chartqa, 1"]["large:S"] > 0
    options = ("--benchmarks", "chartqa", "--at", "1", "--cards", "1", "--methods", *rows)
    printed = run("predict", str(tmp_path / "machine.json"), *options)
    assert tuple(json.loads(printed.splitlines()[-1])["s"]["chartqa, 1"]) == rows
