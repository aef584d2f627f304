"""Every path of Section 4, and those of the first check by confidence, with answers forced by scripted engines."""

import asyncio
import math
from typing import Any

import pytest
from support.attention import attentive_pair
from support.documents import MMMU_OPEN
from support.samples import OWN_INSTRUCTION, Recorder, path, sample, scripted_pair, started_pair

from lmms_eval_mai.contract import Call, Image, Prompt, Sampling, Side
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.errors import MissingAnswer, PromptTooLong
from lmms_eval_mai.paper import prompts
from lmms_eval_mai.paper.calls import CallEvent
from lmms_eval_mai.paper.cascade import MODES, cascade
from lmms_eval_mai.paper.confidence import Choices, Thresholds
from lmms_eval_mai.paper.sample import EXITS, Sample, Trace, category_of

YES, NO = "[[Yes]]", "[[No]]"


def run_mode(
    mode: str, one: Sample, small: dict[str, Any], large: dict[str, Any], **pair: Any
) -> tuple[Trace, Any, Any]:
    """Run one sample. Returns its trace and the scripts of both engines, which have recorded their prompts."""
    scripts = Recorder(small), Recorder(large)

    async def run() -> Trace:
        return await MODES[mode](one, await scripted_pair(*scripts, **pair))

    return asyncio.run(run()), *scripts


PATHS = """
cascade S                 | Yes                | yes          | agree_short | s.short l.short
cascade S                 | Yes think=No       | No           | agree_think | s.short l.short s.think
cascade S                 | Yes think=Yes      | No           | transfer    | s.short l.short s.think l.transfer
cascade S                 | Yes think=?        | ?            | transfer    | s.short l.short s.think l.transfer
cascade R two_stage       | Yes stage2=No      | No           | agree_think | s.short l.short s.think s.stage2
cascade E two_stage       | Yes stage2=No      | Yes          | agree_short | s.short l.short
cascade R two_stage       | Yes stage2=?       | No          | transfer    | s.short l.short s.think s.stage2 l.transfer
transfer S                | think=Yes          |              | transfer    | s.think l.transfer
transfer E                | think=Yes          |              | transfer    | s.think l.transfer
small S                   | Yes                |              | small       | s.short
small E                   | think=Yes          |              | small       | s.think
small R two_stage         | think=? stage2=Yes |              | small       | s.think s.stage2
large S                   |                    | Yes          | large       | l.short
large R                   |                    | think=Yes    | large       | l.think
large R two_stage         |                    | stage2=Yes   | large       | l.think l.stage2
cascade S confidence      |                    | No@0.7       | confident   | l.short
cascade S confidence      | think=Yes          | Yes@0.69     | agree_think | l.short s.think
cascade S confidence      | think=Yes          | No@0.69      | transfer    | l.short s.think l.transfer
cascade S confidence      | think=No           | No           | agree_think | l.short s.think
cascade S confidence      | think=Yes          | @1           | transfer    | l.short s.think l.transfer
cascade S both            | Yes                | Yes@0.7      | agree_short | s.short l.short
cascade S both            | Yes think=Yes      | Yes@0.69     | agree_think | s.short l.short s.think
cascade S both            | Yes think=Yes      | No@1         | transfer    | s.short l.short s.think l.transfer
cascade S agreement       | Yes                | Yes@0.01     | agree_short | s.short l.short
cascade S own             | Yes                | No           | large_think | s.short l.short l.think
cascade R two_stage own   | Yes                | No stage2=No | large_think | s.short l.short l.think l.stage2
cascade S confidence own  |                    | No@0.5       | large_think | l.short l.think
cascade S confidence own  |                    | No@0.8       | confident   | l.short
cascade S confidence once | think=Yes          | Yes@0.5      | transfer    | l.short s.think l.transfer
cascade S confidence once |                    | Yes@0.7      | confident   | l.short
"""
"""Mode, the task's variant and choices (own: thinker=large; once: second_check=off); answers of the small and of the
large model, some with their probability; the exit, and the calls: `s.short` is the short answer of the small model."""


def answers_of(given: str) -> dict[str, Answer]:
    """Return the answer of each stage: that in the table, or one that nobody can read."""
    found = {stage: Answer("Hm. [[?]]") for stage in ("think", "stage2", "transfer")}
    for one in given.split():
        stage, _, answer = one.rpartition("=")
        text, _, probability = answer.partition("@")
        logprob = math.log(float(probability)) if probability else None
        found[stage or "short"] = Answer(f"[[{text}]]", answer_logprob=logprob)
    return found


def choices_of(words: list[str]) -> dict[str, Any]:
    """Return the fields of the pair."""
    rule: Any = next((word for word in words if word in ("confidence", "both")), "agreement")
    choices = Choices(rule, "large" if "own" in words else "small", "off" if "once" in words else "on")
    return {"choices": choices, "thresholds": Thresholds(0.7)}


@pytest.mark.parametrize("row", PATHS.strip().split("\n"))
def test_answers_lead_to_an_exit_by_these_calls_with_the_papers_prompts(row: str) -> None:
    given, small, large, exit, calls = (cell.strip() for cell in row.split("|"))
    mode, variant, *words = given.split()
    one = sample(variant=variant, two_stage="two_stage" in words)
    trace, *scripts = run_mode(mode, one, answers_of(small), answers_of(large), **choices_of(words))
    made = [f"{call.key.side[0]}.{call.key.stage}" for call in trace.calls]
    assert (trace.exit, made) == (exit, calls.split())
    final = "l.short" if exit in ("agree_short", "agree_think", "confident") else made[-1]
    assert trace.answer is trace.calls[made.index(final)]
    thinking = {call.key.side: call.text for call in trace.calls if call.key.stage == "think"}
    for call in trace.calls:
        side, stage = call.key.side, call.key.stage
        ending = {
            "short": prompts.instruction("S", "word"),
            "think": prompts.instruction("E" if variant == "E" else "R", "word"),
            "stage2": prompts.stage2(thinking.get(side, ""), "word"),
            "transfer": prompts.transfer("pope", thinking.get("small", ""), "word"),
        }[stage]
        assert scripts[side == "large"].prompt_of(stage).endswith(ending)


OURS = {"confident", "large_think"}
"""Exits that are not the paper's."""


def test_the_table_has_every_exit_of_each_mode() -> None:
    seen: dict[str, set[str]] = {mode: set() for mode in MODES}
    for row in PATHS.strip().split("\n"):
        seen[row.split()[0]].add(row.split("|")[3].strip())
    assert {mode: set(exits) for mode, exits in EXITS.items()} == {**seen, "cascade": seen["cascade"] - OURS}
    assert seen["cascade"] >= OURS


def test_a_document_with_options_is_asked_for_a_letter_and_its_answers_are_compared_as_letters() -> None:
    choice = sample("mmmu_val", doc={"question_type": "multiple-choice", "options": "['red', 'blue']"})
    trace, small, _ = run_mode("cascade", choice, {"short": "[[B]]"}, {"short": "(B)"})
    assert trace.exit == "agree_short" and small.prompt_of("short").endswith(prompts.instruction("S", "letter"))


def test_a_trace_has_the_verifications_the_threshold_and_the_answer_after_a_thinking_that_is_not_verified() -> None:
    trace = run_mode("cascade", sample(), {"short": YES, "think": YES}, {"short": NO, "transfer": NO})[0]
    assert [(v.small, v.large, v.agree) for v in trace.verifications] == [("yes", "no", False)] * 2
    assert (trace.min_confidence, trace.thought) == (None, None)
    for words, thought in ((["confidence"], None), (["confidence", "once"], "yes")):
        given = choices_of(words)
        trace = run_mode("cascade", sample(), {"think": YES}, {"short": NO, "transfer": NO}, **given)[0]
        assert (trace.min_confidence, trace.thought, len(trace.verifications)) == (0.7, thought, thought is None)


def test_a_benchmark_may_have_a_threshold_of_its_own() -> None:
    thresholds = Thresholds(0.9, {"pope": 0.5})
    sure = {"short": Answer(NO, answer_logprob=math.log(0.6))}
    assert (
        run_mode("cascade", sample(), {}, sure, choices=Choices("confidence"), thresholds=thresholds)[0].exit
        == "confident"
    )
    assert thresholds.of("chartqa") == 0.9


@pytest.mark.parametrize("choice", [None, "cut", "keep"])
@pytest.mark.parametrize("name", sorted(prompts.TRANSFER_TEMPLATE))
@pytest.mark.parametrize("mode", ["cascade", "transfer"])
def test_the_small_models_answer_is_transferred_in_prompt_1_and_cut_in_prompt_2_unless_the_user_chooses(
    mode: str, name: str, choice: str | None
) -> None:
    answers = {"short": YES, "think": "A [[?]] fan.\n\n[[Yes]]"}
    doc = {"mmmu_val": MMMU_OPEN, "realworldqa": {"question": "Is it a fan?"}}.get(name)
    one, large_answers = sample(name, doc=doc), {"short": NO, "transfer": NO}
    trace, _, large = run_mode(mode, one, answers, large_answers, transfer_answer=choice)
    kept = choice == "keep" or (choice is None and name in ("pope", "chartqa"))
    transferred = answers["think"] if kept else "A [[?]] fan."
    assert large.prompt_of("transfer").endswith(prompts.transfer(name, transferred, one.kind))
    assert next(call.text for call in trace.calls if call.key.stage == "think") == answers["think"]


@pytest.mark.parametrize(("variant", "think", "used"), [("S", "E", "E"), ("S", "R", "R"), ("E", "R", "E")])
def test_the_tasks_own_thinking_prompt_has_priority_over_the_argument(variant: str, think: str, used: Any) -> None:
    _, small, _ = run_mode("cascade", sample(variant=variant), {"short": YES, "think": NO}, {"short": NO}, think=think)
    assert small.prompt_of("think").endswith(prompts.instruction(used, "word"))


@pytest.mark.parametrize(("text", "readable"), [("[[No]]", True), ("No.", False), ("", False)])
def test_a_trace_tells_whether_the_scorer_can_read_the_final_answer(text: str, readable: bool) -> None:
    answers = {"short": NO, "think": "[[maybe]]"}
    assert run_mode("cascade", sample(), answers, {"short": YES, "transfer": text})[0].readable is readable
    stages = {"think": YES, "stage2": text}
    assert run_mode("small", sample(variant="R", two_stage=True), stages, {})[0].readable is readable
    other = sample("some_task", None, doc={"options": ["red", "green"]})
    assert run_mode("large", other, {}, {"task": text})[0].readable is bool(text)  # any text


def test_another_lmms_eval_task_has_its_own_prompt_for_short_answers_and_the_papers_prompts_for_the_rest() -> None:
    answers = {"short": "a dog", "think": "It has a tail. [[cat]]"}
    trace, small, large = run_mode("cascade", sample("some_task", None), answers, {"short": "cat.", "transfer": "cat"})
    assert path(trace) == ["small short", "large short", "small think", "large transfer"]
    question = "Is there a dog in the image?\n"
    assert small.prompt_of("short") == large.prompt_of("short") == question + OWN_INSTRUCTION
    assert small.prompt_of("think") == question + prompts.instruction("R", "word")
    assert large.prompt_of("transfer") == question + prompts.transfer("any", "It has a tail.", "word")


def test_all_calls_share_image_and_question_as_prefix_and_only_short_answers_ask_for_log_probabilities() -> None:
    _, small, large = run_mode("cascade", sample(), {"short": YES, "think": YES}, {"short": NO, "transfer": NO})
    sent = [*small.prompts, *large.prompts]
    prefixes = [prompt.messages[-1].content[:2] for prompt in sent]
    assert len(prefixes) == 4 and prefixes == [prefixes[0]] * 4 and isinstance(prefixes[0][0], Image)
    assert [prompt.logprobs for prompt in sent] == [prompt.key.stage == "short" for prompt in sent]


class Meeting(ScriptedEngine):
    """An engine that answers when its partner was asked too."""

    def __init__(self, side: Side, met: asyncio.Barrier) -> None:
        super().__init__(side, Recorder({"short": YES}))
        self._met = met

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        await asyncio.wait_for(self._met.wait(), 10)
        return await super().generate(prompt, sampling)


def test_both_models_give_their_short_answers_at_the_same_time() -> None:
    async def run() -> Trace:
        met = asyncio.Barrier(2)
        return await cascade(sample(), await started_pair(Meeting("small", met), Meeting("large", met)))

    assert asyncio.run(run()).exit == "agree_short"


def test_if_one_of_two_calls_fails_the_other_is_cancelled_and_the_error_is_raised() -> None:
    calls: list[Prompt] = []
    events: list[CallEvent] = []

    def large(prompt: Prompt) -> Answer:
        calls.append(prompt)
        return Answer(YES, seconds=30.0 if len(calls) == 1 else 0.0)

    async def run() -> None:
        pair = await scripted_pair(Recorder({}), large, options=ScriptedOptions(slots=1), on_call=events.append)
        with pytest.raises(MissingAnswer):
            await asyncio.wait_for(MODES["cascade"](sample(), pair), 10)
        # The slot of the cancelled call is free again.
        await asyncio.wait_for(MODES["large"](sample(), pair), 10)

    asyncio.run(run())
    assert len(calls) == 2
    begun = [event for event in events if event.call is event.error is None]
    failed, done = [event for event in events if event.error], [event for event in events if event.call]
    assert (len(begun), len(failed), len(done)) == (3, 2, 1)


def test_every_call_has_the_number_of_tokens_of_its_extracted_answer_if_its_engine_has_a_tokenizer() -> None:
    small = {
        "short": Answer("[[Not sure]]", output_tokens=5),
        "think": Answer("Step one. [[0]] Step two. [[A dog, yes]]", output_tokens=20),
    }
    large = {"short": Answer("Yes", output_tokens=2, answer_tokens=7), "transfer": Answer("[[Yes]]", output_tokens=4)}

    async def run() -> Trace:
        scripts = (lambda prompt: small[prompt.key.stage]), (lambda prompt: large[prompt.key.stage])
        return await cascade(sample(), await attentive_pair(*scripts, {}, sparse=None))

    trace = asyncio.run(run())
    # The number of a record is kept, and the answer of the trace is one of its calls.
    assert [(call.answer_tokens, call.output_tokens) for call in trace.calls] == [(2, 5), (7, 2), (3, 20), (1, 4)]
    assert trace.answer is trace.calls[-1]


def test_thinking_that_overflows_the_context_is_truncated_or_refused() -> None:
    thinking = "Look again. " * 100 + "So the answer is no."
    small, large = {"short": NO, "think": f"{thinking} [[No]]"}, {"short": YES, "transfer": "Yes"}

    async def run(**choices: Any) -> tuple[Trace, Recorder]:
        scripts = Recorder(small), Recorder(large)
        return await cascade(sample(), await attentive_pair(*scripts, {}, sparse=None, **choices)), scripts[1]

    trace, sent = asyncio.run(run(log_prompts=True))
    assert trace.exit == "transfer" and [call.dropped_tokens for call in trace.calls] == [0, 0, 0, 200]
    assert "".join(trace.prompts[3][0]["content"][1:]) == sent.prompt_of("transfer")  # the prompt that was answered
    assert sent.prompt_of("transfer").endswith(prompts.transfer("pope", " So the answer is no.", "word"))
    with pytest.raises(PromptTooLong):
        asyncio.run(run(on_overflow="error"))


def test_trace_with_prompts_holds_what_was_sent_in_each_call_and_no_image() -> None:
    answers = ({"short": NO, "think": NO}, {"short": YES, "transfer": YES})
    trace, small, large = run_mode("cascade", sample(), *answers, log_prompts=True)
    assert len(trace.prompts) == len(trace.calls) == 4
    for call, prompt in zip(trace.calls, trace.prompts, strict=True):
        ((role, (image, *texts)),) = [message.values() for message in prompt]
        assert (role, image) == ("user", "<image 64x48>")
        assert "".join(texts) == {"small": small, "large": large}[call.key.side].prompt_of(call.key.stage)
    assert run_mode("cascade", sample(), *answers)[0].prompts == ()


@pytest.mark.parametrize(
    ("doc", "category"),
    [({"category": "path"}, "path"), ({"answer_type": ["a", "b"]}, "a, b"), ({"category": 3}, None), ({}, None)],
)
def test_category_of_a_document_is_that_of_its_data_set(doc: dict[str, Any], category: str | None) -> None:
    assert category_of(doc) == category
