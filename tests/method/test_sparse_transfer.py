"""The cascade with `transfer=sparse` (Eq. 12 and 13), with scripted engines that give attention weights."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from support.attention import LAYER, AttentiveEngine, attentive_pair
from support.documents import MMMU_OPEN
from support.samples import Recorder, path, sample, started_pair

from lmms_eval_mai.contract import AttentionRequest
from lmms_eval_mai.errors import SampleError
from lmms_eval_mai.method import prompts
from lmms_eval_mai.method.methods import FULL_RT, METHODS
from lmms_eval_mai.method.run import run_sample
from lmms_eval_mai.method.sample import Sample, Trace
from lmms_eval_mai.method.sparse import Sparse

THINKING = "The small animal on the sofa is a dog, not a cat. [[Yes]]"
HEAVY = {"dog,": 4.0, "sofa": 8.0, "not": 3.0, "[[Yes]]": 90.0}
KEPT = " sofa dog, not"  # 15.0 of 16.0 without the answer


def run_method(
    name: str,
    thinking: str = THINKING,
    one: Sample | None = None,
    heavy: Mapping[str, float] = HEAVY,
    **choices: Any,
) -> tuple[Trace, Recorder, Recorder]:
    """Run one sample that is transferred. Returns its trace and the scripts, which have recorded their prompts."""
    small = Recorder({"simple": "[[Yes]]", "think": thinking, "stage2": "[[Yes]]"})
    large = Recorder({"simple": "[[No]]", "score": "It", "transfer": "[[No]]"})

    async def run_one() -> Trace:
        pair = await attentive_pair(small, large, heavy, method=METHODS[name], **choices)
        return await run_sample(one or sample(), pair)

    return asyncio.run(run_one()), small, large


def request_of(recorder: Recorder, name: str) -> AttentionRequest | None:
    (prompt,) = [prompt for prompt in recorder.prompts if prompt.key.prompt == name]
    return prompt.attention


@pytest.mark.parametrize("name", ["mai", "full_rt"])
def test_large_model_scores_the_thinking_in_the_transfer_prompt_and_gets_only_the_key_tokens(name: str) -> None:
    trace, _, large = run_method(name)
    assert path(trace)[-3:] == ["small think", "large score", "large transfer"]
    thinking = THINKING.removesuffix(" [[Yes]]")
    assert large.prompt_of("score").endswith(prompts.transfer("previous_thinking", thinking, "word"))
    assert request_of(large, "score") == AttentionRequest(LAYER, thinking)
    assert large.prompt_of("transfer").endswith(prompts.transfer("previous_thinking", KEPT, "word"))
    assert trace.exit == "transfer" and trace.answer.key.prompt == "transfer"


def test_answer_counts_among_the_thinking_only_if_it_is_kept() -> None:
    one = sample("mmmu_val", doc=MMMU_OPEN)
    cut, kept = (run_method("full_rt", one=one, transfer_answer=choice)[0].selection for choice in ("cut", "keep"))
    assert cut is not None and kept is not None
    assert (cut.text, cut.scored_tokens) == (KEPT, 12)
    assert (kept.text, kept.scored_tokens) == (" [[Yes]]", 13)


def test_delta_1_sends_the_prompt_of_full_transfer() -> None:
    _, _, sparse = run_method("full_rt", delta=1.0)
    _, _, full = run_method("full_rt", sparse=None)
    assert sparse.prompt_of("transfer") == full.prompt_of("transfer")
    assert {prompt.key.prompt for prompt in full.prompts} == {"transfer"}


def test_trace_has_the_selection_and_no_weights() -> None:
    trace, *_ = run_method("mai")
    selection = trace.selection
    assert selection is not None and selection.text == KEPT and selection.positions == (5, 8, 9)
    assert (selection.kept_tokens, selection.scored_tokens, selection.transferred_tokens) == (3, 12, 3)
    assert selection.share == pytest.approx(15.0 / 15.9) and selection.layer == LAYER
    assert all(call.attention is None for call in trace.calls)  # the weights of all samples would fill the memory
    assert [call.answer_tokens for call in trace.calls if call.key.prompt == "score"] == [0]


def test_empty_thinking_is_transferred_without_scoring() -> None:
    trace, _, large = run_method("full_rt", thinking="")
    assert (path(trace), trace.selection) == (["small think", "large transfer"], None)
    assert large.prompt_of("transfer").endswith(prompts.transfer("previous_thinking", "", "word"))


def test_thinking_of_stage_1_is_scored_in_a_two_stage_task_and_a_sample_whose_answers_agree_is_not_scored() -> None:
    trace, *_ = run_method("mai", one=sample(variant="R", two_stage=True))
    assert path(trace)[-4:] == ["small think", "small stage2", "large score", "large transfer"]
    assert trace.selection is not None and trace.selection.text == KEPT
    trace, *_ = run_method("mai", thinking="[[No]]")
    assert trace.exit == "agree_think" and trace.selection is None and "large score" not in path(trace)


@pytest.mark.parametrize("thinking", ["reference", " "])
def test_thinking_that_is_also_a_part_of_the_prompt_is_a_content_part_of_its_own(thinking: str) -> None:
    trace, _, large = run_method("full_rt", thinking=thinking, one=sample("mmmu_val", doc=MMMU_OPEN))
    (score,) = [prompt for prompt in large.prompts if prompt.key.prompt == "score"]
    assert score.messages[-1].content[-2] == thinking
    assert large.prompt_of("score").endswith(prompts.transfer("reference", thinking, "word"))
    assert trace.selection is not None and trace.selection.text == thinking


def test_weights_that_are_not_numbers_fail_the_sample_with_what_to_do() -> None:
    with pytest.raises(SampleError, match=r"pope_x document 0: the large model .* Try large_dtype=float32"):
        run_method("full_rt", heavy={"dog,": float("nan")})


def test_thinking_that_does_not_fit_is_truncated_before_it_is_scored() -> None:
    small = Recorder({"think": "again " * 90 + "so the red dog barks [[Yes]]"})
    large = Recorder({"score": "It", "transfer": "[[No]]"})

    async def run_one() -> tuple[Trace, list[int]]:
        engines = AttentiveEngine("small", small, {}), AttentiveEngine("large", large, {"red": 5.0})
        pair = await started_pair(*engines, method=FULL_RT, sparse=Sparse(layer=LAYER), transfer_answer="cut")
        return await run_sample(sample(), pair), engines[1].reserved

    trace, reserved = asyncio.run(run_one())
    assert request_of(large, "score") == AttentionRequest(LAYER, " so the red dog barks")
    assert trace.selection is not None and (trace.selection.text, trace.selection.scored_tokens) == (" red", 5)
    assert [call.dropped_tokens for call in trace.calls] == [0, 90, 0]
    assert reserved == [64]  # the space for the answer of the transfer, and not of the scoring


def test_tokens_of_the_kept_text_are_counted_again_by_the_large_models_tokenizer() -> None:
    selection = run_method("full_rt", thinking="sofa, sofaThe dog", heavy={"sofa,": 80.0, "sofaThe": 40.0})[0].selection
    assert selection is not None and (selection.text, selection.transferred_tokens) == ("sofa, sofaThe", 2)
