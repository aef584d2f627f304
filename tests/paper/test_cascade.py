"""Every path of Section 4, with answers forced by scripted engines."""

import asyncio
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
from lmms_eval_mai.paper.sample import EXITS, Sample, Trace, category_of

YES, NO = "[[Yes]]", "[[No]]"


def run_mode(
    mode: str, one: Sample, small: dict[str, str], large: dict[str, str], **pair: Any
) -> tuple[Trace, Any, Any]:
    """Run one sample. Returns its trace and the scripts of both engines, which have recorded their prompts."""
    scripts = Recorder(small), Recorder(large)

    async def run() -> Trace:
        return await MODES[mode](one, await scripted_pair(*scripts, **pair))

    return asyncio.run(run()), *scripts


def test_a_sample_with_agreeing_short_answers_finishes_at_agree_short() -> None:
    trace, small, large = run_mode("cascade", sample(), {"short": YES}, {"short": "[[yes]]"})
    assert (trace.exit, path(trace), trace.answer.text) == ("agree_short", ["small short", "large short"], "[[yes]]")
    assert all(script.prompt_of("short").endswith(prompts.instruction("S", "word")) for script in (small, large))
    choice = sample("mmmu_val", doc={"question_type": "multiple-choice", "options": "['red', 'blue']"})
    trace, small, _ = run_mode("cascade", choice, {"short": "[[B]]"}, {"short": "(B)"})
    assert trace.exit == "agree_short" and small.prompt_of("short").endswith(prompts.instruction("S", "letter"))


def test_a_sample_finishes_at_agree_think_if_the_thought_answer_agrees_with_the_large_short_answer() -> None:
    trace, small, _ = run_mode("cascade", sample(), {"short": YES, "think": f"Step 1 ... {NO}"}, {"short": NO})
    assert (trace.exit, path(trace)) == ("agree_think", ["small short", "large short", "small think"])
    assert trace.answer.text == NO
    assert small.prompt_of("think").endswith(prompts.instruction("R", "word"))


def test_after_two_disagreements_the_thinking_is_transferred_to_the_large_model() -> None:
    thinking = f"The fan is {{not}} suitable. {YES}"
    trace, _, large = run_mode("cascade", sample(), {"short": YES, "think": thinking}, {"short": NO, "transfer": "Yes"})
    assert (trace.exit, trace.answer.text) == ("transfer", "Yes")
    assert path(trace) == ["small short", "large short", "small think", "large transfer"]
    assert large.prompt_of("transfer").endswith(prompts.transfer("pope", thinking, "word"))
    assert [v.agree for v in trace.verifications] == [False, False]
    assert (trace.verifications[1].small, trace.verifications[1].large) == ("yes", "no")


def test_full_transfer_always_thinks_and_makes_no_calls_for_short_answers() -> None:
    trace, _, large = run_mode("transfer", sample(), {"think": YES}, {"transfer": YES})
    assert (trace.exit, path(trace), trace.thought) == ("transfer", ["small think", "large transfer"], "yes")
    assert large.prompt_of("transfer").endswith(prompts.transfer("pope", YES, "word"))


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


def test_the_two_stage_form_verifies_the_second_stage_and_transfers_the_first() -> None:
    answers = {"short": YES, "think": "Thinking [[0]]", "stage2": "No"}
    trace, small, _ = run_mode("cascade", sample(variant="R", two_stage=True), answers, {"short": NO})
    assert (trace.exit, path(trace)) == ("agree_think", ["small short", "large short", "small think", "small stage2"])
    assert small.prompt_of("stage2").endswith(prompts.stage2("Thinking [[0]]", "word"))
    trace, _, large = run_mode(
        "cascade", sample(variant="E", two_stage=True), answers | {"stage2": "Yes"}, {"short": NO, "transfer": NO}
    )
    assert trace.exit == "transfer"
    assert large.prompt_of("transfer").endswith(prompts.transfer("pope", "Thinking [[0]]", "word"))


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


@pytest.mark.parametrize("side", ["small", "large"])
@pytest.mark.parametrize(
    ("variant", "two_stage", "stages"),
    [("S", False, ["short"]), ("E", False, ["think"]), ("R", True, ["think", "stage2"])],
)
def test_one_model_alone_gets_the_tasks_own_prompt(side: str, variant: Any, two_stage: bool, stages: list[str]) -> None:
    answers = {"short": "s", "think": "t", "stage2": "2"}
    one = sample(variant=variant, two_stage=two_stage)
    trace, *scripts = run_mode(side, one, answers if side == "small" else {}, answers if side == "large" else {})
    script = scripts[0] if side == "small" else scripts[1]
    assert (trace.exit, trace.answer.text) == (side, answers[stages[-1]])
    assert [call.key.stage for call in trace.calls] == stages
    assert script.prompt_of(stages[0]).endswith(prompts.instruction(variant, "word"))


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


def test_each_mode_reaches_exactly_its_exits() -> None:
    seen: dict[str, set[str]] = {mode: set() for mode in MODES}
    answers = {"short": YES, "think": NO, "transfer": YES}
    for mode in MODES:
        for large in (YES, NO, "[[?]]"):
            trace, *_ = run_mode(mode, sample(), answers, {"short": large, "transfer": YES})
            seen[mode].add(trace.exit)
    assert {mode: set(exits) for mode, exits in EXITS.items()} == seen


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
