"""Every path of Section 4, and those of the first check by confidence, with answers forced by scripted engines.
`test_refusals.py` has the methods that are refused."""

import asyncio
import math
from typing import Any

import pytest
import yaml
from support.documents import MMMU_OPEN
from support.samples import OWN_INSTRUCTION, run_method, sample

from lmms_eval_mai.contract import PROMPTS, Image
from lmms_eval_mai.engines.scripted import Answer
from lmms_eval_mai.errors import MissingAnswer, PromptTooLong
from lmms_eval_mai.method import prompts
from lmms_eval_mai.method.benchmarks import BENCHMARKS
from lmms_eval_mai.method.files import read_steps
from lmms_eval_mai.method.methods import METHODS, Method, Thresholds
from lmms_eval_mai.method.sample import category_of

YES, NO = "[[Yes]]", "[[No]]"

BOTH = """
- ask: [large.simple, small.simple]
- stop: {exit: agree_short, answer: large.simple, agree: [small.simple, large.simple], sure: large.simple}
- ask: small.think
- stop: {exit: agree_think, answer: large.simple, agree: [small.think, large.simple]}
- {ask: large.transfer, of: small.think}
- stop: {exit: transfer, answer: large.transfer}
"""
AGREE_THEN_OWN = """
- ask: [large.simple, small.simple]
- stop: {exit: agree_short, answer: large.simple, agree: [small.simple, large.simple]}
- ask: large.think
- stop: {exit: large_think, answer: large.think}
"""
EXPLAIN_FIRST = """
- ask: small.explain
- ask: large.simple
- stop: {exit: explained, answer: small.explain, agree: [small.explain, large.simple]}
- stop: {exit: sure, answer: large.simple, sure: {large.simple: 0.9}}
- ask: [small.think, large.think]
- stop: {exit: both_think, answer: small.think, agree: [small.think, large.think]}
- {ask: small.transfer, of: large.think}
- stop: {exit: back, answer: small.transfer}
"""
TOGETHER = """
- ask: [small.explain, small.think, large.simple]
- stop: {exit: same, answer: small.explain, agree: [small.think, large.simple]}
- stop: {exit: other, answer: large.simple}
"""
OWN_AND_ITS = """
- ask: large.simple
- stop: {exit: confident, answer: large.simple, sure: {large.simple: 0.9}}
- ask: small.native
- stop: {exit: agree, answer: small.native, agree: [small.native, large.simple]}
- {ask: large.transfer, of: small.native}
- stop: {exit: transfer, answer: large.transfer}
"""
OWN = {
    "native": OWN_AND_ITS,
    "both": BOTH,
    "agree_then_own": AGREE_THEN_OWN,
    "explain_first": EXPLAIN_FIRST,
    "together": TOGETHER,
}
"""Methods of a user, as YAML."""


def method_of(name: str) -> Method:
    """Return a named method, or one of `OWN`."""
    return METHODS[name] if name in METHODS else read_steps(name, yaml.safe_load(OWN[name]), name)


PATHS = """
mai S | Yes | yes | agree_short | s.simple l.simple
mai S | Yes think=No | No | agree_think | s.simple l.simple s.think
mai S | Yes think=Yes | No | transfer | s.simple l.simple s.think l.transfer
mai S | Yes think=? | ? | transfer | s.simple l.simple s.think l.transfer
mai R two_stage | Yes stage2=No | No | agree_think | s.simple l.simple s.think s.stage2
mai E two_stage | Yes stage2=No | Yes | agree_short | s.simple l.simple
mai E | Yes think=No | No | agree_think | s.simple l.simple s.explain
mai R two_stage | Yes stage2=? | No | transfer | s.simple l.simple s.think s.stage2 l.transfer
mai S | Yes | Yes@0.01 | agree_short | s.simple l.simple
mai - | Yes think=Yes | No | transfer | s.task l.task s.think l.transfer
full_rt S | think=Yes |  | transfer | s.think l.transfer
full_rt E | think=Yes |  | transfer | s.explain l.transfer
small S | Yes |  | small | s.simple
small E | think=Yes |  | small | s.explain
small R two_stage | think=? stage2=Yes |  | small | s.think s.stage2
large S |  | Yes | large | l.simple
large R |  | think=Yes | large | l.think
large R two_stage |  | stage2=Yes | large | l.think l.stage2
large_r S |  | think=Yes | large_think | l.think
large_r E |  | think=Yes | large_think | l.explain
mai_confidence S |  | No@0.7 | confident | l.simple
mai_confidence S | think=Yes | Yes@0.69 | agree_think | l.simple s.think
mai_confidence S | think=Yes | No@0.69 | transfer | l.simple s.think l.transfer
mai_confidence S | think=No | No | agree_think | l.simple s.think
mai_confidence S | think=Yes | @1 | transfer | l.simple s.think l.transfer
mai_confidence_direct S | think=Yes | Yes@0.5 | transfer | l.simple s.think l.transfer
mai_confidence_direct S |  | Yes@0.7 | confident | l.simple
own_thinking S |  | No@0.5 | large_think | l.simple l.think
own_thinking E |  | No@0.5 | large_think | l.simple l.explain
own_thinking S |  | No@0.8 | confident | l.simple
own_thinking R two_stage |  | No stage2=No | large_think | l.simple l.think l.stage2
both S | Yes | Yes@0.7 | agree_short | s.simple l.simple
both S | Yes think=Yes | Yes@0.69 | agree_think | s.simple l.simple s.think
both S | Yes think=Yes | No@1 | transfer | s.simple l.simple s.think l.transfer
agree_then_own S | Yes | Yes | agree_short | s.simple l.simple
agree_then_own S | Yes | No | large_think | s.simple l.simple l.think
explain_first S | think=Yes | Yes | explained | l.simple s.explain
explain_first S | think=Yes | No@0.95 | sure | l.simple s.explain
explain_first S | think=Yes | No think=Yes | both_think | l.simple s.explain s.think l.think
explain_first S | think=Yes | No think=No | back | l.simple s.explain s.think l.think s.transfer
explain_first E | think=Yes | No think=No | back | l.simple s.explain l.explain s.transfer
native S | native=No | No@0.5 | agree | l.simple s.native
native R two_stage | native=Yes | No@0.5 | transfer | l.simple s.native l.transfer
native S |  | No@0.95 | confident | l.simple
together S | think=Yes | No | other | l.simple s.explain s.think
together E | think=Yes | Yes | same | l.simple s.explain
"""
"""Method and the task's variant; answers of the small and of the large model, some with their probability (`think` is
that of `explain` too); the exit, and the calls: `s.simple` is the short answer of the small model. `-`: another
lmms-eval task."""

NATIVE = """
mai S | Yes native=red</think>No | No | agree_think | s.simple l.simple s.native
mai S | Yes native=No</think>Yes | No | transfer | s.simple l.simple s.native l.transfer
mai E | Yes think=No | No | agree_think | s.simple l.simple s.explain
mai R two_stage | Yes stage2=No | No | agree_think | s.simple l.simple s.think s.stage2
mai - | Yes native=red</think>No | No | agree_think | s.task l.task s.native
full_rt S | native=red</think>Yes |  | transfer | s.native l.transfer
large S |  | native=red</think>Yes | large | l.native
large - |  | native=red</think>Yes | large | l.native
large_r - |  | native=red</think>Yes | large_think | l.native
large R |  | think=Yes | large | l.think
own_thinking S |  | No@0.5 native=red</think>Yes | large_think | l.simple l.native
"""
"""Like `PATHS`, with `think=native`, and answers after a thinking."""
EXPLAIN = """
mai S | Yes think=No | No | agree_think | s.simple l.simple s.explain
mai R | Yes think=No | No | agree_think | s.simple l.simple s.think
"""
"""Like `PATHS`, with `think=E`."""
ROWS = [
    (think, row)
    for think, rows in (("R", PATHS), ("native", NATIVE), ("E", EXPLAIN))
    for row in rows.strip().split("\n")
]


def answers_of(given: str) -> dict[str, Answer]:
    """Return the answer to each prompt: that in the table, or one that nobody can read."""
    found = {prompt: Answer("Hm. [[?]]") for prompt in ("think", "stage2", "transfer")}
    for one in given.split():
        prompt, _, answer = one.rpartition("=")
        thought_and_answer, _, probability = answer.partition("@")
        thought, mark, text = thought_and_answer.rpartition("</think>")
        logprob = math.log(float(probability)) if probability else None
        found[prompt or "simple"] = Answer(f"{thought}{mark}[[{text}]]", answer_logprob=logprob)
    return found | {"explain": found["think"], "task": found.get("simple", Answer(""))}


@pytest.mark.parametrize(("think", "row"), ROWS)
def test_answers_lead_to_an_exit_by_these_calls_with_the_papers_prompts(think: Any, row: str) -> None:
    given, small, large, exit, calls = (cell.strip() for cell in row.split("|"))
    name, variant, *words = given.split()
    one = sample(variant=None if variant == "-" else variant, two_stage="two_stage" in words)
    choices = {"thresholds": Thresholds(0.7), "think": think}
    trace, *scripts, _ = run_method(method_of(name), one, answers_of(small), answers_of(large), **choices)
    made = [f"{call.key.side[0]}.{call.key.prompt}" for call in trace.calls]
    assert (trace.exit, made) == (exit, calls.split())
    assert trace.settings.method == method_of(name) and trace.answer in trace.calls
    thinking = {call.key.name: call for call in trace.calls if PROMPTS[call.key.prompt].thinks}
    for call in trace.calls:
        of = thinking.get(call.key.of)
        transferred = "" if of is None else of.text if of.thinking is None else f"{of.thinking}\n\n{of.text}"
        ending = {
            "simple": prompts.instruction("S", "word"),
            "think": prompts.instruction("R", "word"),
            "explain": prompts.instruction("E", "word"),
            "stage2": prompts.stage2(transferred, "word"),
            "transfer": prompts.transfer("previous_thinking", transferred, "word"),
            "native": OWN_INSTRUCTION if variant == "-" else prompts.instruction("S", "word"),
            "task": OWN_INSTRUCTION,
        }[call.key.prompt]
        sent = [request for request in scripts[call.key.side == "large"].prompts if request.key == call.key]
        assert len(sent) == 1 and "".join(map(str, sent[0].messages[-1].content[1:])).endswith(ending)


def test_the_table_has_every_exit_of_each_method() -> None:
    seen: dict[str, set[str]] = {}
    for row in PATHS.strip().split("\n"):
        seen.setdefault(row.split()[0], set()).add(row.split("|")[3].strip())
    assert {name: set(method_of(name).exits) for name in seen} == seen and {*METHODS, *OWN} == {*seen}


@pytest.mark.parametrize(
    ("output", "choice", "reference"),
    [
        ("red. [[No]]</think>\n\n[[Yes]]", "keep", "red. [[No]]\n\n[[Yes]]"),
        ("red. [[No]]</think>\n\n[[Yes]]", "cut", "red. [[No]]"),
        ("<|channel>thought\nred.<channel|>[[Yes]]", "cut", "red."),
    ],
)
def test_transfer_has_the_thinking_without_its_marks(output: str, choice: Any, reference: str) -> None:
    small, large = {"native": output}, {"transfer": NO}
    trace, _, script, _ = run_method("full_rt", sample(), small, large, think="native", transfer_answer=choice)
    assert script.prompt_of("transfer").endswith(prompts.transfer("previous_thinking", reference, "word"))
    assert trace.calls[1].key.of == "small.native"


def test_thinking_that_was_cut_has_no_answer() -> None:
    small = {"simple": YES, "native": Answer("[[No]] or", finish_reason="length")}
    trace, *_ = run_method("mai", sample(), small, {"simple": NO, "transfer": NO}, think="native")
    assert trace.exit == "transfer" and trace.calls[2].parsed is None and trace.calls[2].thinking == "[[No]] or"


def test_a_benchmark_may_have_a_threshold_of_its_own() -> None:
    thresholds = Thresholds(0.9, {"pope": 0.5})
    sure = {"simple": Answer(NO, answer_logprob=math.log(0.6))}
    trace = run_method("mai_confidence", sample(), {}, sure, thresholds=thresholds).trace
    assert (trace.exit, trace.min_confidence) == ("confident", 0.5)
    assert thresholds.of("chartqa") == 0.9


@pytest.mark.parametrize("choice", [None, "cut", "keep"])
@pytest.mark.parametrize("name", sorted(BENCHMARKS))
@pytest.mark.parametrize("mode", ["mai", "full_rt"])
def test_the_small_models_answer_is_transferred_in_prompt_1_and_cut_in_prompt_2_unless_the_user_chooses(
    mode: str, name: str, choice: str | None
) -> None:
    answers = {"simple": YES, "think": "A [[?]] fan.\n\n[[Yes]]"}
    doc = {"mmmu_val": MMMU_OPEN, "realworldqa": {"question": "Is it a fan?"}}.get(name)
    one, large_answers = sample(name, doc=doc), {"simple": NO, "transfer": NO}
    trace, _, large, _ = run_method(mode, one, answers, large_answers, transfer_answer=choice)
    kept = choice == "keep" or (choice is None and name in ("pope", "chartqa"))
    transferred = answers["think"] if kept else "A [[?]] fan."
    assert large.prompt_of("transfer").endswith(
        prompts.transfer(one.benchmark.transfer_prompt, transferred, one.answer_form)
    )
    assert next(call.text for call in trace.calls if call.key.prompt == "think") == answers["think"]


@pytest.mark.parametrize(("text", "readable"), [("[[No]]", True), ("No.", False), ("", False)])
def test_a_trace_tells_whether_the_scorer_can_read_the_final_answer(text: str, readable: bool) -> None:
    answers = {"simple": NO, "think": "[[maybe]]"}
    assert run_method("mai", sample(), answers, {"simple": YES, "transfer": text})[0].readable is readable
    stages = {"think": YES, "stage2": text}
    assert run_method("small", sample(variant="R", two_stage=True), stages, {})[0].readable is readable
    other = sample("some_task", None, doc={"options": ["red", "green"]})
    assert run_method("large", other, {}, {"task": text})[0].readable is bool(text)  # any text


def test_all_calls_share_image_and_question_as_prefix_and_only_short_answers_ask_for_log_probabilities() -> None:
    _, small, large, _ = run_method("mai", sample(), {"simple": YES, "think": YES}, {"simple": NO, "transfer": NO})
    sent = [*small.prompts, *large.prompts]
    prefixes = [prompt.messages[-1].content[:2] for prompt in sent]
    assert len(prefixes) == 4 and prefixes == [prefixes[0]] * 4 and isinstance(prefixes[0][0], Image)
    assert [prompt.logprobs for prompt in sent] == [prompt.key.prompt == "simple" for prompt in sent]


def test_both_models_give_their_short_answers_at_the_same_time() -> None:
    seen: list[bool] = []
    answers = {"simple": Answer(YES, seconds=0.01)}
    run_method("mai", sample(), answers, answers, on_call=lambda key, outcome: seen.append(outcome is None))
    assert seen == [True, True, False, False]  # both begin before one ends


def test_if_one_of_two_calls_fails_the_other_is_cancelled_and_the_error_is_raised() -> None:
    outcomes: list[Any] = []
    slow = {"simple": Answer(YES, seconds=600.0)}
    with pytest.raises(MissingAnswer):
        run_method("mai", sample(), {}, slow, on_call=lambda key, outcome: outcomes.append(outcome))
    assert outcomes[:2] == [None, None] and len(outcomes) == 4
    assert {type(outcome) for outcome in outcomes[2:]} == {MissingAnswer, asyncio.CancelledError}


def test_every_call_has_the_number_of_tokens_of_its_extracted_answer_if_its_engine_has_a_tokenizer() -> None:
    small = {
        "simple": Answer("[[Not sure]]", output_tokens=5),
        "think": Answer("Step one. [[0]] Step two. [[A dog, yes]]", output_tokens=20),
    }
    large = {"simple": Answer("Yes", output_tokens=2, answer_tokens=7), "transfer": Answer("[[Yes]]", output_tokens=4)}
    trace = run_method("mai", sample(), small, large).trace
    # The number of a record is kept, and the answer of the trace is one of its calls.
    assert [(call.answer_tokens, call.output_tokens) for call in trace.calls] == [(2, 5), (7, 2), (3, 20), (1, 4)]
    assert trace.answer is trace.calls[-1]


def test_thinking_that_overflows_the_context_is_truncated_or_refused() -> None:
    thinking = "Look again. " * 100 + "So the answer is no."
    answers: Any = {"simple": NO, "think": f"{thinking} [[No]]"}, {"simple": YES, "transfer": "Yes"}
    trace, _, sent, _ = run_method("mai", sample(), *answers, transfer_answer="cut", log_prompts=True)
    assert trace.exit == "transfer" and [call.dropped_tokens for call in trace.calls] == [0, 0, 0, 200]
    shown = "".join((trace.calls[3].messages or ())[0]["content"][1:])
    assert shown == sent.prompt_of("transfer")  # the prompt that was answered
    assert shown.endswith(prompts.transfer("previous_thinking", " So the answer is no.", "word"))
    with pytest.raises(PromptTooLong):
        run_method("mai", sample(), *answers, on_overflow="error")


@pytest.mark.parametrize(
    ("doc", "category"),
    [({"category": "path"}, "path"), ({"answer_type": ["a", "b"]}, "a, b"), ({"category": 3}, None), ({}, None)],
)
def test_category_of_a_document_is_that_of_its_data_set(doc: dict[str, Any], category: str | None) -> None:
    assert category_of(doc) == category
