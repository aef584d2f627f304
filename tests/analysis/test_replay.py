"""What a method would have done with the calls of finished runs is what a run of this method does."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.folders import World
from support.pair import Answers

from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.method.agreement import AgreementRules
from lmms_eval_mai.method.files import read_steps
from lmms_eval_mai.method.methods import MAI, METHODS, Method

BACK = """
- ask: large.think
- {ask: small.transfer, of: large.think}
- stop: {exit: back, answer: small.transfer}
"""
OWN = """
- ask: [large.simple, small.simple]
- stop: {exit: sure, answer: small.simple, sure: {small.simple: 0.8}}
- ask: [large.think, small.think]
- stop: {exit: both, answer: large.think, agree: [small.think, large.think], sure: large.simple}
- {ask: small.transfer, of: large.think}
- stop: {exit: back, answer: small.transfer}
"""
BACK_METHOD, OWN_METHOD = (read_steps(name, yaml.safe_load(text), "") for name, text in (("back", BACK), ("own", OWN)))
METHODS_OF_TEST = [*METHODS.values(), OWN_METHOD]


@pytest.fixture(scope="module", params=["r", "r_s2"])
def two_stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, World, Runs]:
    """The suffix of tasks with one stage or with two, made-up answers, and runs that have made all calls."""
    chance = random.Random(5)

    def answers() -> list[str]:
        return [chance.choice(["red", "red", "blue", ""]) for _ in range(7)]

    documents = [
        Answers("red", *given[:5], probability=chance.uniform(0.2, 1), stage2=(given[5], given[6]))
        for given in (answers() for _ in range(120))
    ]
    world = World("shapes", documents, min_confidence=0.6)
    folder = tmp_path_factory.mktemp("runs")
    for suffix, methods in (("s", ("small", "large")), (request.param, ("small", "large", "full_rt"))):
        for method in methods:
            world.write(folder / suffix, method, suffix, time=method)
    world.write(folder, BACK_METHOD, request.param)
    return request.param, world, Runs.read([folder])


@pytest.mark.parametrize("method", METHODS_OF_TEST, ids=lambda method: str(method.name))
def test_a_replay_does_what_the_steps_say(two_stage: tuple[str, World, Runs], method: Method) -> None:
    suffix, world, runs = two_stage
    base = next(run for run in runs.select("full_rt") if run.setup.method.name == "full_rt")
    found = runs.replay(base, method, world.min_confidence)
    assert found is not None
    for trace, made in zip(world.traces(method, suffix), found.samples.itertuples(), strict=True):
        answer = trace.answer.parsed
        assert (made.exit, made.parsed, made.score) == (trace.exit, answer, answer == "red")
        assert made.output_tokens == sum(call.output_tokens for call in trace.calls)
        document_calls = found.calls[found.calls.doc_id == made.Index]
        assert sorted(document_calls.side) == sorted(call.key.side for call in trace.calls)
    assert set(found.samples.exit) == set(method.exits)


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
        Answers("north gate", "south gate", "north gate", "north gate", "west"),  # ANLS 0.8
        Answers("a", "north", "south", "nort", "a"),  # ANLS 0.6
    ],
)


@pytest.mark.parametrize(
    ("world", "options", "is_stricter", "suffix"),
    [
        (PAGES, {"infovqa_match": "anls", "anls_threshold": 0.5}, False, "r_s2"),
        (replace(CHARTS, options={"chartqa_match": "relaxed"}), {}, True, "s"),
    ],
)
def test_another_rule_gives_what_a_cascade_with_this_rule_does_and_a_stricter_one_takes_calls_of_full_rt(
    tmp_path: Path, task_manager: Any, world: World, options: dict[str, Any], is_stricter: bool, suffix: str
) -> None:
    world.write(tmp_path / "runs", "mai", suffix)
    if is_stricter:
        world.write(tmp_path / "runs", "full_rt", time="20260102_000000")
    replace(world, options=options).write(tmp_path / "other", "mai", suffix)
    runs = Runs.read([tmp_path / "runs"])
    ((run,), (expected,)) = (Runs.read([tmp_path / name]).select("cascade") for name in ("runs", "other"))
    found = runs.replay(replace(run, rules=AgreementRules(**options)), MAI)
    assert found is not None
    assert list(expected.samples.exit) != list(run.samples.exit)
    for column in ("exit", "score", "output_tokens"):
        assert list(found.samples[column]) == list(expected.samples[column]), column


SURE = [
    Answers("red", "red", "red", "red", "red", probability=0.99),
    Answers("red", "blue", "blue", "red", "red", probability=0.3),
    Answers("red", "blue", "red", "blue", "red", probability=0.8),
    Answers("red", "blue", "red", "red", "blue", probability=0.5),
    Answers("red", "red", "", "red", "red", probability=1.0),  # cannot be read
]


def test_methods_and_thresholds_have_a_row_each_or_a_sentence_that_names_them(
    tmp_path: Path, task_manager: Any
) -> None:
    world = World("shapes", SURE)
    methods, found = [METHODS[name] for name in ("mai_confidence", "own_thinking", "full_rt")], []
    for method, suffix in (("mai", "s"), ("full_rt", "s"), ("large", "r")):
        world.write(tmp_path, method, suffix, time=method)
        runs = Runs.read([tmp_path])
        sentences = list(runs.add_replays(methods, (0.9, 0.25)))
        added = [(run.setup.method.name, dict(run.setup.options)) for run in runs.select() if run.is_replay]
        found.append(([(name, options["min_confidence"]) for name, options in added if options], len(sentences)))
    own, confidence = ([(name, 0.25), (name, 0.9)] for name in ("own_thinking", "mai_confidence"))
    # MAI asked for thinking where the answer is less sure than 0.25, and not everywhere where it is less sure than 0.9.
    assert found == [(confidence[:1], 4), (confidence, 2), ([*own, *confidence], 0)]


def test_a_stricter_rule_takes_no_calls_from_a_document_with_another_gold_answer(
    tmp_path: Path, task_manager: Any
) -> None:
    loose = replace(PAGES, options={"infovqa_match": "anls", "anls_threshold": 0.5})
    loose.write(tmp_path, "mai")
    others = [*PAGES.documents[:2], replace(PAGES.documents[2], gold="another")]
    replace(loose, documents=others).write(tmp_path, "full_rt", time="20260102_000000")
    runs = Runs.read([tmp_path])
    (run,) = runs.select("cascade")
    assert runs.replay(replace(run, rules=AgreementRules(0.85)), MAI) is None


OWN_TASK = World(
    "mytask",
    [
        replace(one, large_thought=one.transferred, probability=sure)
        for one, sure in zip(SURE, (0.9, 0.1, 0.9, 0.1, 0.1), strict=True)
    ],
    min_confidence=0.5,
)


def test_a_task_of_ones_own_is_replayed_and_its_score_is_known_if_runs_of_each_call_have_one(tmp_path: Path) -> None:
    for name in ("mai", "full_rt", "large_r"):
        OWN_TASK.write(tmp_path, name, "", time=name)
    for is_scored in (False, True):
        if is_scored:
            OWN_TASK.write(tmp_path, "large", "", time="large")
        runs = Runs.read([tmp_path])
        methods = [METHODS[name] for name in ("mai_confidence", "own_thinking")]
        sentences = list(runs.add_replays(methods, [0.5]))
        replays = {run.setup.method.name: run for run in runs.select() if run.is_replay}
        assert replays.keys() == {method.name for method in methods}
        for method in methods:
            rows, expected = replays[method.name].samples, OWN_TASK.traces(method, "")
            assert list(rows.exit) == [trace.exit for trace in expected]
            assert list(rows.parsed) == [trace.answer.parsed for trace in expected]
            assert list(rows.output_tokens) == [sum(call.output_tokens for call in trace.calls) for trace in expected]
            scores = [float(trace.text == "red") for trace in expected]
            assert list(rows.score) == scores if is_scored else rows.score.isna().all()
        assert sum("score" in sentence for sentence in sentences) == (0 if is_scored else 2)


def test_a_method_that_cannot_be_replayed_is_named_with_the_calls_that_are_missing(tmp_path: Path) -> None:
    OWN_TASK.write(tmp_path, "mai", "")
    (sentence,) = Runs.read([tmp_path]).add_replays([METHODS["own_thinking"]], [0.5])
    assert "own_thinking" in sentence and "large.think on 0 of 5" in sentence and "results.json" in sentence
    assert "large.task" not in sentence
