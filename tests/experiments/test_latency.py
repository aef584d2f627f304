"""experiments/latency: its plan, the simulation against times computed by hand, and its scripts on the demo pair."""

import bisect
import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.folders import Answers, World

from experiments.latency import plan, predict
from experiments.latency.plan import Document, Plan, Row
from lmms_eval_mai.analysis import paper_numbers
from lmms_eval_mai.analysis.tables import seconds
from lmms_eval_mai.contract import PROMPTS

ROOT = Path(__file__).resolve().parents[2]
EASY, MIDDLE, HARD = (Document(difficulty, 1.0) for difficulty in (0.1, 0.75, 0.9))
LENGTHS = {"S": 1, "E": 5, "R": 10}
MODEL = {
    "decode_ms": [[1, 10, 10], [256, 10, 10]],
    "prefill_ms": [[0, 10], [100, 20], [8100, 820]],  # 0.1 ms a token, and 10 ms for the weights
    "encoder_ms": [[0, 0], [8, 40]],
}
RECORD = {
    "device": "by hand",
    "image": "80 tokens",
    "tokens": {"image": 80, "text": 20, "later": 30},
    "contexts": [0, 1000],
    "core_ms": 0.0,
    "host_ms": {"call": 0.0, "image": 0.0, "token": 0.0},
    "models": {"small": MODEL, "large": MODEL},
}
HOST = {"call": 2.0, "image": 3.0, "token": 1.0}


@pytest.mark.parametrize(
    ("method", "documents", "options", "ms"),
    [
        # A call takes the encoder, the prefill and one step for each further token.
        ("large:S", [HARD], {}, 5 + 20),
        ("large:R", [HARD, HARD], {}, 2 * (5 + 20 + 9 * 10)),
        # A batch reads the weights once.
        ("large:R", [HARD, HARD], {"at": 2}, 2 * 5 + 30 + 9 * 10),
        # Engines share one card and not two; on a CPU, the cores.
        ("mai", [EASY], {}, 2 * 25),
        ("mai", [EASY], {"cards": 2}, 25),
        ("mai", [EASY], {"cards": 2, "cores": 1}, 2 * 25),
        ("mai", [EASY], {"cards": 2, "cores": 2}, 25),
        # A later call reads only its new tokens, a transfer also the thinking.
        ("mai", [MIDDLE], {"cards": 2}, 25 + (10 + 3) + 9 * 10),
        ("mai", [HARD], {"cards": 2}, 25 + 103 + (10 + 3 + 1)),
        ("full_rt", [EASY], {}, 115 + 5 + (10 + 10 + 1)),
        ("own_thinking:E", [HARD], {}, 25 + 13 + 4 * 10),
        # The main process prepares one prompt after the other.
        ("large:S", [HARD], {"host_ms": HOST}, 5 + 25 + 1),
        ("mai", [HARD], {"cards": 2, "host_ms": HOST}, 10 + 25 + 1 + 2 + 103 + 1 + 2 + 14 + 1),
        # The core of an engine works while the other engine has the card.
        ("large:R", [HARD], {"core_ms": 1.0}, 115 + 10),
        ("mai", [EASY], {"core_ms": 1.0}, 51),
    ],
)
def test_seconds_are_predicted_as_computed_by_hand(
    method: str, documents: list[Document], options: dict[str, Any], ms: float
) -> None:
    record = RECORD | {name: value for name, value in options.items() if name not in ("at", "cards")}
    made, row = Plan("chartqa", {"small": LENGTHS, "large": LENGTHS}, (70.0, 10.0), documents), plan.read_row(method)
    found = predict.seconds(record, made, row, options.get("at", 1), options.get("cards", 1))
    assert 1000 * len(documents) * found == pytest.approx(ms)


def test_eq_27_adds_the_calls_without_caches() -> None:
    made = Plan("chartqa", {"small": LENGTHS, "large": LENGTHS}, (70.0, 10.0), (MIDDLE,))
    assert predict.eq_27(RECORD, made, plan.read_row("mai")) == pytest.approx(0.035 + 0.035 + 0.125)


def given(*options: str) -> Any:
    return plan.parser("").parse_args(options)


def exits(made: Plan, row: Row) -> Counter[int]:
    """Return how many documents get how many calls."""
    return Counter(sum(map(len, made.calls(row, document))) for document in made.documents)


def test_documents_have_the_exits_of_the_paper_or_ones_own(tmp_path: Path) -> None:
    made = plan.plan("chartqa", 1000, given())
    assert exits(made, plan.read_row("mai")) == {2: 720, 3: 78, 4: 202}
    assert exits(made, plan.read_row("own_thinking:E:0.4")) == {1: 600, 2: 400}
    (tmp_path / "twice.yaml").write_text(
        "- ask: large.simple\n- stop: {exit: sure, answer: large.simple, sure: large.simple}\n"
        "- ask: small.think\n- {ask: large.transfer, of: small.think}\n- stop: {exit: done, answer: large.transfer}\n"
    )
    own = ["--exits", "50", "25", "--lengths", json.dumps(LENGTHS), "8B", "--methods", f"{tmp_path}/twice.yaml"]
    made = plan.plan("pope", 100, given(*own))
    assert made.lengths["small"] == LENGTHS and made.lengths["large"]["R"] == 149.3
    assert exits(made, given(*own).methods[0]) == {1: 50, 3: 50}


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


def test_hard_questions_think_as_long_as_one_says_while_something_is_left_for_easy_ones() -> None:
    made = plan.plan("chartqa", 1000, given("--hard_factor", "2"))
    assert mean_tokens(made, "own_thinking") == pytest.approx(2 * 294.3, rel=0.01)
    easy = (1 - 0.28 * 2) / 0.72
    assert mean_tokens(made, "own_thinking:R:0.56") == pytest.approx((1 + easy / 2) * 294.3, rel=0.02)
    for documents in (4, 1000):
        with pytest.raises(ValueError, match="--hard_factor below 3"):
            plan.plan("chartqa", documents, given("--hard_factor", "4"))
    few = plan.plan("chartqa", 4, given("--exits", "35", "20", "--hard_factor", "1.4"))  # 3 of 4 are hard: 4.2 means
    assert sum(document.factor for document in few.documents) == pytest.approx(4)
    assert min(document.factor for document in few.documents) > 0


@pytest.mark.parametrize("benchmark", plan.BENCHMARKS)
def test_the_factors_of_hard_questions_follow_from_table_11(benchmark: str) -> None:
    def number(table: int, method: str, measure: str) -> float:
        found = paper_numbers.number(table, method, benchmark, measure)
        assert found is not None
        return found

    small, large = (seconds.papers_profile().models[f"Qwen/Qwen3-VL-{size}-Instruct"].seconds for size in ("2B", "8B"))
    mai, short = "MAI 8B + 2B-R", number(5, "8B-S", "tokens")
    exits = ("agree_short", "agree_think", "transfer")
    agree, think, transfer = (number(10, mai, f"{exit}, documents") for exit in exits)
    documents = agree + think + transfer
    shorts_s = documents * (small(512, number(5, "2B-S", "tokens")) + large(512, short))

    def full_rt_s(tokens: float) -> float:
        return documents * float(small(512, tokens) + large(512 + tokens, short))

    def mai_s(tokens: float) -> float:
        return float(shorts_s + (think + transfer) * small(512, tokens) + transfer * large(512 + tokens, short))

    of_all = bisect.bisect(range(10000), number(11, "Full RT 8B + 2B-R", "seconds"), key=full_rt_s)
    of_hard = bisect.bisect(range(10000), number(11, mai, "seconds"), key=mai_s)
    assert plan.HARD_FACTORS[benchmark] == pytest.approx(of_hard / of_all, abs=0.01)


def test_lengths_and_exits_of_ones_own_runs(tmp_path: Path) -> None:
    agree, disagree = Answers("red", *4 * ["red"]), Answers("red", "blue", "green", "red", "red")
    world = World("shapes", [agree] * 3 + [disagree])
    for number, (method, suffix) in enumerate([("mai", "s"), ("full_rt", "s"), ("large", "s"), ("small", "s")]):
        world.write(tmp_path, method, suffix, time=f"20260101_00000{number}")
    found = plan.measured(tmp_path, given())
    assert (found["exits"], found["hard_factor"]) == ([75.0, 0.0], 1.0)
    assert [json.loads(lengths) for lengths in found["lengths"]] == [{"S": 4.0, "R": 100.0}, {"S": 4.0}]
    assert [row.title for row in found["methods"]] == ["large:S", "full_rt", "mai", "mai_confidence"]


def options_of(monkeypatch: pytest.MonkeyPatch, *options: str | Path) -> Any:
    monkeypatch.setattr(sys, "argv", ["planned.py", *map(str, options)])
    return plan.options_of(plan.parser(""))


def test_of_two_runs_of_a_method_the_one_with_the_most_documents_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agree, disagree = Answers("red", *4 * ["red"]), Answers("red", "blue", "green", "red", "red")
    few, many = World("shapes", [disagree] * 2), World("shapes", [disagree] * 2 + [agree] * 2)
    for number, (world, method) in enumerate([(few, "mai"), (few, "full_rt"), (many, "mai"), (many, "full_rt")]):
        world.write(tmp_path, method, time=f"20260101_00000{number}")
    found = options_of(monkeypatch, "--from", tmp_path, "--methods", "large:R", "mai")
    assert (found.exits, found.hard_factor, [row.title for row in found.methods]) == ([50.0, 0.0], 1.0, ["mai"])
    assert capsys.readouterr().out.endswith("lengths: large:R.\n")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--lengths", "2B", "8B"], "--lengths"),
        (["--exits", "50", "25"], "--exits"),
        (["--hard_factor", "1"], "--hard_factor"),
        (["--hard_factor", "0"], "--hard_factor"),
        (["--benchmarks", "pope"], "--benchmarks"),
        (["--methods", "large:R"], "large:R"),
    ],
)
def test_options_that_ones_own_runs_contradict_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], named: str
) -> None:
    world = World("shapes", [Answers("red", *4 * ["red"])] * 2)
    world.write(tmp_path, "mai")
    world.write(tmp_path, "full_rt", time="20260101_000001")
    with pytest.raises(SystemExit, match="2"):
        options_of(monkeypatch, "--from", tmp_path, *options)
    assert named in capsys.readouterr().err.splitlines()[-1]


def test_runs_that_think_with_e_do_not_have_the_thinking_of_r(tmp_path: Path) -> None:
    world = World("shapes", [Answers("red", *4 * ["red"])] * 2, options={"think": "E"})
    world.write(tmp_path, "mai")
    world.write(tmp_path, "full_rt", time="20260101_000001")
    with pytest.raises(ValueError, match="think=R"):
        plan.measured(tmp_path, given())


# --- the commands of its README.md, with few documents -------------------------------------------------------


def run(script: str, *options: str) -> str:
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
