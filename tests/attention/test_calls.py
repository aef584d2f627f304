"""The calls of one document, on scripted engines that give attention weights."""

import asyncio
from typing import Any

import pytest
from support.attention import LAYER, attentive_pair
from support.samples import Recorder, sample

from lmms_eval_mai.attention.analysis import Parts
from lmms_eval_mai.attention.calls import AnalysisCalls, LoggedThinking
from lmms_eval_mai.attention.table9 import Answer
from lmms_eval_mai.contract import Side
from lmms_eval_mai.paper.sample import Sample, Trace
from lmms_eval_mai.run.config import parse

THINKING = "I see one red dog on the left. [[Yes]]"
REFERENCE = "I see one red dog on the left."
HEAVY = {"red": 4.0, "dog": 6.0}
LAYERS = (1, LAYER)


def run(
    calls: AnalysisCalls, opened: Sample | None = None, thinking: str = THINKING, **choices: Any
) -> tuple[Trace, Recorder, Recorder]:
    """Make the calls of a document. Returns the trace and the two scripts."""
    small = Recorder({"think": thinking})
    answers = {"think": "It is a dog. [[Yes]]", "short": "[[No]]", "score": "x", "transfer": "[[Yes]]"}
    large = Recorder(answers)

    async def make() -> Trace:
        pair = await attentive_pair(small, large, HEAVY, **choices)
        return await calls(opened or sample("pope", "R"), pair)

    return asyncio.run(make()), small, large


def stages(recorder: Recorder) -> list[str]:
    return [prompt.key.stage for prompt in recorder.prompts]


def transferred(recorder: Recorder) -> list[str]:
    """Return the thinking in each transfer prompt of POPE."""
    texts = [str(prompt.messages[-1].content[-1]) for prompt in recorder.prompts if prompt.key.stage == "transfer"]
    return [text.removeprefix("According to previous thinking: ").partition("\n Answer")[0] for text in texts]


def answers(calls: AnalysisCalls) -> dict[tuple[str, int | None], Answer]:
    """Return the answers of the document, by method and layer."""
    ((document, found),) = calls.answers.items()
    assert document == ("pope_x", 0)
    return {(answer.method, answer.layer): answer for answer in found}


def test_thinking_is_scored_once_for_all_layers_and_answered_once_per_text() -> None:
    calls = AnalysisCalls(LAYERS)
    trace, small, large = run(calls)
    assert stages(small) == ["think"]
    assert stages(large)[:3] == ["short", "score", "transfer"]
    assert stages(large).count("score") == 1
    texts = transferred(large)
    assert texts[0] == REFERENCE and len(set(texts)) == len(texts)
    assert trace.answer.text == "[[Yes]]" and trace.answer.key.stage == "transfer"
    assert len(trace.calls) == len(small.prompts) + len(large.prompts)


def test_controls_transfer_as_many_tokens_as_the_layer_keeps() -> None:
    calls = AnalysisCalls(LAYERS)
    _, _, large = run(calls)
    found = answers(calls)
    # Layer 3: 4 + 6 of 10.6. All tokens weigh the same in layer 1: 7 of 8 tokens carry at least 80%.
    assert {name: found[name, LAYER].kept_tokens for name in ("sparse", "random", "last")} == dict.fromkeys(
        ("sparse", "random", "last"), 2
    )
    assert found["last", 1].kept_tokens == 7 and found["full", None].kept_tokens == 8
    texts = transferred(large)
    assert {" red dog", " the left.", "I see one red dog on the"} <= set(texts)
    assert all(found[name, LAYER].transferred_tokens == 2 for name in ("sparse", "random", "last"))
    assert found["simple", None] == Answer("simple", None, "[[No]]", 0, 0, 10, 10)
    prefilled = {method: one.prefilled_tokens - one.prompt_tokens for method, one in found.items()}
    assert {method for method, tokens in prefilled.items() if tokens} == {("sparse", n) for n in LAYERS}
    assert prefilled["sparse", 1] == 10  # the scoring call


def test_weights_of_the_small_model_need_no_scoring_call_and_leave_out_the_answer() -> None:
    calls = AnalysisCalls(LAYERS)
    _, _, large = run(calls, source="small")
    found = answers(calls)
    assert "score" not in stages(large) and " red dog" in transferred(large)
    assert found["full", None].kept_tokens == 8
    assert found["sparse", LAYER].prefilled_tokens == found["sparse", LAYER].prompt_tokens


@pytest.mark.parametrize("source", ["large", "small"])
def test_empty_thinking_is_not_scored(source: str) -> None:
    calls = AnalysisCalls(LAYERS)
    _, _, large = run(calls, thinking="", source=source)
    assert "score" not in stages(large) and transferred(large) == [""]
    assert {one.kept_tokens for one in answers(calls).values()} == {0}


def test_random_tokens_depend_on_the_seed() -> None:
    texts = set()
    for seed in range(4):
        _, _, large = run(AnalysisCalls((LAYER,), seed=seed))
        texts.add(transferred(large)[2])
    assert len(texts) > 1


def test_thinking_of_both_models_is_kept_without_the_answer() -> None:
    calls = AnalysisCalls(own_thinking=True)
    trace, small, large = run(calls)
    assert calls.thinkings == {("pope_x", 0): {"small": REFERENCE, "large": "It is a dog."}}
    assert (stages(small), stages(large), calls.answers) == (["think"], ["think"], {})
    assert len(trace.calls) == 2


def logged(writer: Side) -> LoggedThinking:
    return LoggedThinking(writer, {("pope_x", 0): "It is logged. [[No]]"}, "run")


@pytest.mark.parametrize(
    ("writer", "table9", "source", "small_calls", "thinking"),
    [
        ("small", True, "large", [], "It is logged."),
        ("large", False, "large", ["think"], "It is logged."),
        ("small", True, "small", ["think"], REFERENCE),  # its own attention is needed, so it thinks again
    ],
)
def test_logged_thinking_is_used_without_a_call(
    writer: Side, table9: bool, source: str, small_calls: list[str], thinking: str
) -> None:
    calls = AnalysisCalls(LAYERS if table9 else (), own_thinking=True, logged=logged(writer))
    _, small, large = run(calls, source=source)
    assert stages(small) == small_calls and ("think" in stages(large)) is (writer == "small")
    assert calls.thinkings["pope_x", 0][writer] == thinking
    assert transferred(large)[:1] == ([thinking] if table9 else [])


@pytest.mark.parametrize(
    ("writer", "table9", "sparse_from", "sides"),
    [
        (None, False, "large", {"small", "large"}),
        ("small", False, "large", {"large"}),
        ("small", True, "large", {"large"}),
        ("small", True, "small", {"small", "large"}),
        ("large", False, "large", {"small"}),
        ("large", True, "large", {"small", "large"}),
    ],
)
def test_only_models_with_calls_are_needed(
    writer: Side | None, table9: bool, sparse_from: str, sides: set[Side]
) -> None:
    config = parse({"pair": "demo", "mode": "transfer", "transfer": "sparse", "sparse_from": sparse_from})
    assert Parts(figures=True, table9=table9).sides(config, logged(writer) if writer else None) == sides
