"""`transfer=sparse`: the properties of Select() (Eq. 12) for any tokens and weights, and the cascade with scripted
engines that give attention weights (Eq. 13)."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import quick
from support.documents import MMMU_OPEN
from support.samples import LAYER, Recorder, Run, path, run_method, sample

from lmms_eval_mai.contract import AttentionRequest
from lmms_eval_mai.errors import SampleError
from lmms_eval_mai.method import prompts
from lmms_eval_mai.method.sample import Sample
from lmms_eval_mai.method.sparse import Selection, Sparse, select

TOKENS = st.sampled_from(["", "a", " the", "[[", "<|im_end|>", "é", "\n\n", "[[answer]]", "{", "\ufffd"])
WEIGHTS = st.sampled_from([0.0, 0.1, 0.25, 5e-324, 1.0]) | st.floats(0, 1)
DELTAS = st.sampled_from([0.8, 1.0, 0.1, 5e-324]) | st.floats(0, 1, exclude_min=True)

Scored = list[tuple[str, float]]
"""Texts of tokens with their weights."""

scored = st.lists(st.tuples(TOKENS, WEIGHTS), max_size=12)


def selected(pairs: Scored, **arguments: object) -> Selection:
    return select([text for text, _ in pairs], [weight for _, weight in pairs], Sparse(**arguments))  # type: ignore[arg-type]


def weight_of(pairs: Scored, positions: Sequence[int]) -> Fraction:
    """Return the exact sum of the weights at these positions."""
    return sum((Fraction(pairs[position][1]) for position in positions), Fraction(0))


@quick
@given(pairs=scored, delta=DELTAS)
def test_the_fewest_heaviest_tokens_that_carry_delta_are_kept_in_the_order_of_the_thinking(
    pairs: Scored, delta: float
) -> None:
    found = selected(pairs, delta=delta)
    ranking = sorted((-weight, position) for position, (_, weight) in enumerate(pairs))  # of equal ones the earliest
    assert found.positions == tuple(position for _, position in ranking)[: found.kept_tokens]
    assert found.scored_tokens == len(pairs) and 0 <= found.share <= 1  # also False for NaN
    assert found.text == "".join(pairs[position][0] for position in sorted(found.positions))
    total = weight_of(pairs, range(len(pairs)))
    if delta == 1 or total == 0:  # the whole thinking
        assert found.kept_tokens == len(pairs)
        return
    allowed = Fraction(1e-15)
    assert found.share >= delta and weight_of(pairs, found.positions) / total >= Fraction(delta) - allowed
    assert weight_of(pairs, found.positions[:-1]) / total < Fraction(delta) + allowed


# --- in the cascade ---------------------------------------------------------------------------------------

THINKING = "The small animal on the sofa is a dog, not a cat. [[Yes]]"
HEAVY = {"dog,": 4.0, "sofa": 8.0, "not": 3.0, "[[Yes]]": 90.0}
KEPT = " sofa dog, not"  # 15.0 of 16.0 without the answer


def transferred(
    method: str, thinking: str = THINKING, one: Sample | None = None, heavy: Any = HEAVY, answer: str = "cut"
) -> Run:
    """Run one sample that is transferred. `answer`: whether the small model's `[[answer]]` is transferred too."""
    small = {"simple": "[[Yes]]", "think": thinking, "stage2": "[[Yes]]"}
    large = {"simple": "[[No]]", "score": "It", "transfer": "[[No]]"}
    return run_method(method, one or sample(), small, large, heavy, sparse=Sparse(layer=LAYER), transfer_answer=answer)


def request_of(recorder: Recorder, name: str) -> AttentionRequest | None:
    (prompt,) = [prompt for prompt in recorder.prompts if prompt.key.prompt == name]
    return prompt.attention


@pytest.mark.parametrize("name", ["mai", "full_rt"])
def test_large_model_scores_the_thinking_in_the_transfer_prompt_and_gets_only_the_key_tokens(name: str) -> None:
    trace, _, large, _ = transferred(name)
    assert path(trace)[-3:] == ["small think", "large score", "large transfer"]
    thinking = THINKING.removesuffix(" [[Yes]]")
    assert large.prompt_of("score").endswith(prompts.transfer("previous_thinking", thinking, "word"))
    assert request_of(large, "score") == AttentionRequest(LAYER, thinking)
    assert large.prompt_of("transfer").endswith(prompts.transfer("previous_thinking", KEPT, "word"))
    assert trace.exit == "transfer" and trace.answer.key.prompt == "transfer"
    selection = trace.selection
    assert selection is not None and selection.text == KEPT and selection.positions == (5, 8, 9)
    assert (selection.kept_tokens, selection.scored_tokens, selection.transferred_tokens) == (3, 12, 3)
    assert selection.share == pytest.approx(15.0 / 15.9) and selection.layer == LAYER
    assert all(call.attention is None for call in trace.calls)  # the weights of all samples would fill the memory
    assert [call.answer_tokens for call in trace.calls if call.key.prompt == "score"] == [0]


def test_answer_counts_among_the_thinking_only_if_it_is_kept() -> None:
    one = sample("mmmu_val", doc=MMMU_OPEN)
    cut, kept = (transferred("full_rt", one=one, answer=choice).trace.selection for choice in ("cut", "keep"))
    assert cut is not None and kept is not None
    assert (cut.text, cut.scored_tokens) == (KEPT, 12)
    assert (kept.text, kept.scored_tokens) == (" [[Yes]]", 13)


def test_empty_thinking_is_transferred_without_scoring() -> None:
    trace, _, large, _ = transferred("full_rt", thinking="")
    assert (path(trace), trace.selection) == (["small think", "large transfer"], None)
    assert large.prompt_of("transfer").endswith(prompts.transfer("previous_thinking", "", "word"))


def test_thinking_of_stage_1_is_scored_in_a_two_stage_task() -> None:
    trace = transferred("mai", one=sample(variant="R", two_stage=True)).trace
    assert path(trace)[-4:] == ["small think", "small stage2", "large score", "large transfer"]
    assert trace.selection is not None and trace.selection.text == KEPT


def test_weights_that_are_not_numbers_fail_the_sample_with_what_to_do() -> None:
    with pytest.raises(SampleError, match=r"pope_x document 0: the large model .* Try large_dtype=float32"):
        transferred("full_rt", heavy={"dog,": math.nan})


def test_thinking_that_does_not_fit_is_truncated_before_it_is_scored() -> None:
    trace, _, large, engine = transferred("full_rt", "again " * 90 + "so the red dog barks [[Yes]]", heavy={"red": 5.0})
    assert request_of(large, "score") == AttentionRequest(LAYER, " so the red dog barks")
    assert trace.selection is not None and (trace.selection.text, trace.selection.scored_tokens) == (" red", 5)
    assert [call.dropped_tokens for call in trace.calls] == [0, 90, 0]
    assert engine.reserved == [64]  # the space for the answer of the transfer, and not of the scoring


def test_tokens_of_the_kept_text_are_counted_again_by_the_large_models_tokenizer() -> None:
    trace = transferred("full_rt", "sofa, sofaThe dog", heavy={"sofa,": 80.0, "sofaThe": 40.0}).trace
    assert trace.selection is not None
    assert (trace.selection.text, trace.selection.transferred_tokens) == ("sofa, sofaThe", 2)
