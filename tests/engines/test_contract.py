"""The contract of engines, tested with the scripted engine and, on one tiny checkpoint, with vLLM, transformers and a
real API server on loopback."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as PilImage
from support.engines import (
    GREEDY,
    LoopThread,
    Running,
    answer,
    engine_of,
    make_image,
    processor_inputs,
    prompt,
    question,
    started,
)
from support.servers import Server

from lmms_eval_mai.contract import Image, Reply, Sampling
from lmms_eval_mai.engines.openai.engine import OpenAIEngine
from lmms_eval_mai.engines.scripted import ScriptedEngine
from lmms_eval_mai.errors import EngineNotRunning, PromptTooLong, SampleError

REAL = ("vllm", "openai", "transformers")


@pytest.fixture(scope="module")
def server(tiny_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tiny_pair[0], tmp_path_factory.mktemp("server") / "log")
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def openai(server: Server, vllm: Running, loop: LoopThread) -> Iterator[Running]:
    """Needs `vllm` only so that both start at the same time."""
    server.wait()
    with started(engine_of(small=server.url), loop) as running:
        yield running


@pytest.fixture(scope="module")
def transformers(tiny_pair: tuple[Path, Path], loop: LoopThread) -> Iterator[Running]:
    with started(engine_of(small=str(tiny_pair[0]), engine="transformers", dtype="float32"), loop) as running:
        yield running


@pytest.fixture
def scripted(loop: LoopThread) -> Iterator[Running]:
    with started(ScriptedEngine("small", answer), loop) as running:
        yield running


def requested(request: pytest.FixtureRequest, server: Server) -> Running:
    engine: Running = request.getfixturevalue(request.param)
    return engine


running = pytest.fixture(requested, params=["scripted", *REAL], name="running")
real = pytest.fixture(requested, params=REAL, name="real")


@pytest.mark.parametrize("name", ["scripted", *REAL])
def test_an_engine_that_was_never_started_raises_engine_crashed(name: str, tiny_pair: tuple[Path, Path]) -> None:
    engine: Any = ScriptedEngine("small", answer)
    if name != "scripted":
        small = "http://127.0.0.1:9/v1" if name == "openai" else str(tiny_pair[0])
        engine = engine_of(small=small, small_engine=name)
    with pytest.raises(EngineNotRunning):
        asyncio.run(engine.generate(question(0), GREEDY))


def test_each_of_many_calls_at_once_gets_its_own_answer(running: Running) -> None:
    calls = running.generate(*(question(i) for i in range(12)))
    for call in calls:
        assert isinstance(call, Reply) and call.finish_reason in ("stop", "length")
        assert call.prompt_tokens > 0 and call.output_tokens == 12 and call.cached_tokens >= 0
        assert call.logprobs is None and call.answer_logprob is None  # the prompt does not ask for them
        assert 0 <= (call.queued_s or 0) <= call.total_s and 0 < (call.ttft_s or call.total_s) <= call.total_s


def test_a_prompt_that_cannot_be_answered_fails_without_failing_other_calls(running: Running) -> None:
    bad = prompt(1, make_image(), "unanswerable " * 5000)
    first, error, last = running.generate(question(0), bad, question(2))
    assert isinstance(first, Reply) and isinstance(last, Reply)
    assert isinstance(error, SampleError)
    assert "contract document 1, small simple" in str(error)


def test_a_cancelled_call_frees_its_slot(running: Running) -> None:
    async def cancel() -> None:
        for moment in range(15):  # while the prompt is prepared, while it is sent, and while the model answers
            long = asyncio.ensure_future(running.engine.generate(question(7), replace(GREEDY, max_tokens=2000)))
            await asyncio.sleep(moment / 1000)
            long.cancel()
            with pytest.raises(asyncio.CancelledError):
                await long

    running.loop.run(cancel())
    (call,) = running.generate(question(8))
    assert call.output_tokens > 0
    if (llm := getattr(running.engine, "llm", None)) is not None:
        assert llm.get_num_unfinished_requests() == 0


# --- engines with a model -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected(server: Server, vllm: Running) -> list[Reply]:
    """vLLM's answers to calls that were made one after the other, of different lengths."""
    calls = [vllm.generate(question(i), sampling=Sampling(max_tokens=16 + i, ignore_eos=True))[0] for i in range(8)]
    assert len({call.text for call in calls}) > 3
    return calls


def test_all_engines_give_the_same_texts_and_token_counts(real: Running, expected: list[Reply]) -> None:
    async def at_once() -> list[Reply]:
        return await asyncio.gather(
            *(real.engine.generate(question(i), Sampling(max_tokens=16 + i, ignore_eos=True)) for i in range(8))
        )

    for i, (call, wanted) in enumerate(zip(real.loop.run(at_once()), expected, strict=True)):
        assert (wanted.finish_reason, wanted.output_tokens) == ("length", 16 + i)
        figures = ("text", "finish_reason", "prompt_tokens", "output_tokens")
        assert [getattr(call, name) for name in figures] == [getattr(wanted, name) for name in figures]


def readable(text: str) -> str:
    """Return the text without the replacements of bytes that are no character: their tokens have no text."""
    return text.replace("\ufffd", "")


def test_prompt_tokens_equal_the_count_of_the_models_own_processor(real: Running, tiny_pair: tuple[Path, Path]) -> None:
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(tiny_pair[0])
    image = make_image("orange", (160, 96))
    asked = prompt(0, image, "Is there a dog?\n", "Answer the question.")
    (call,) = real.generate(asked)
    ids = processor_inputs(processor, asked)["input_ids"][0].tolist()
    assert call.prompt_tokens == len(ids)
    image_tokens = ids.count(processor.image_token_id)
    assert image_tokens == 40 and call.image_tokens == (None if isinstance(real.engine, OpenAIEngine) else image_tokens)
    assert call.output_tokens == GREEDY.max_tokens


def test_all_engines_give_the_same_log_probabilities_of_all_tokens(real: Running, vllm: Running) -> None:
    """The sampled tokens of penalised answers too: the log-probabilities are those before temperature and penalties."""
    questions = [replace(question(i), logprobs=True) for i in range(4)]
    for sampling in (GREEDY, replace(FREE, repetition_penalty=1.3), Sampling(max_tokens=90)):
        for call, wanted in zip(
            real.generate(*questions, sampling=sampling), vllm.generate(*questions, sampling=sampling), strict=True
        ):
            assert call.logprobs is not None and len(call.logprobs.values) == call.output_tokens
            assert call.logprobs.values == pytest.approx(wanted.logprobs.values, abs=0.01)
            assert max(call.logprobs.values) <= 0 and min(call.logprobs.values) < -0.1
            if type(real.engine).__name__ == "TransformersEngine":  # vLLM gives the end token a text
                assert readable("".join(call.logprobs.texts)) == readable(call.text) != ""
                assert call.finish_reason == "length" or call.logprobs.texts[-1] == ""


def test_an_answer_that_ends_by_itself_is_the_same_on_all_engines_and_its_output_tokens_include_the_end_token(
    real: Running, vllm: Running
) -> None:
    found = figures(real, Sampling(max_tokens=90))
    assert found == figures(vllm, Sampling(max_tokens=90))
    assert {tokens == 90 for _, reason, tokens in found if reason == "length"} <= {True}
    stopped = [(i, text, tokens) for i, (text, reason, tokens) in enumerate(found) if reason == "stop"]
    assert stopped
    for number, text, tokens in stopped:  # the same tokens without the last one, which ends the answer, have its text
        shorter = Sampling(max_tokens=tokens - 1, ignore_eos=True)
        (without_end,) = real.generate(question(number), sampling=shorter)
        assert (without_end.text, without_end.output_tokens) == (text, tokens - 1)


FREE = Sampling(max_tokens=40, ignore_eos=True)


def figures(running: Running, sampling: Sampling) -> list[tuple[str, str, int]]:
    """Return text, finish reason and output tokens of four calls at once."""
    calls = running.generate(*(question(i) for i in range(4)), sampling=sampling)
    return [(call.text, call.finish_reason, call.output_tokens) for call in calls]


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_each_penalty_changes_the_texts_and_gives_the_same_texts_on_all_engines(
    real: Running, vllm: Running, name: str
) -> None:
    penalised = replace(FREE, **{name: 2.0})
    expected = figures(vllm, penalised)
    assert all(one != free for one, free in zip(expected, figures(vllm, FREE), strict=True))
    assert figures(real, penalised) == expected


def test_sampled_answers_repeat_with_their_seed_and_are_greedy_if_min_p_leaves_one_token(real: Running) -> None:
    greedy = figures(real, FREE)
    sampled = replace(FREE, temperature=2.0, seed=3)
    assert figures(real, sampled) == figures(real, sampled) != figures(real, replace(sampled, seed=4)) != greedy
    assert figures(real, replace(sampled, min_p=1.0)) == greedy


def test_an_answer_ends_before_its_first_stop_text_at_the_same_token_on_all_engines(
    real: Running, vllm: Running
) -> None:
    free = [text for text, _, _ in figures(vllm, FREE)]
    stops = tuple(next(re.finditer("[^\ufffd]{3}", text[10:]))[0] for text in free[:2])  # bytes may be half a character
    expected = figures(vllm, replace(FREE, stop=stops))
    assert figures(real, replace(FREE, stop=stops)) == expected
    assert [reason for _, reason, _ in expected[:2]] == ["stop", "stop"]
    for whole, (text, reason, tokens) in zip(free, expected, strict=True):
        assert whole.startswith(text) and not any(stop in text for stop in stops)
        assert (reason == "stop") is any(stop in whole for stop in stops) is (tokens < 40)


def test_tokens_of_a_text_are_those_of_the_models_own_tokenizer(real: Running, tiny_pair: tuple[Path, Path]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_pair[0])
    has_tokenizer = type(real.engine).__name__ != "OpenAIEngine"
    for text in ("Yes", "[[Yes]]", "", "two words <|im_end|>"):
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert real.engine.count_tokens(text) == (len(tokens) if has_tokenizer else None)


def test_an_image_that_cannot_be_prepared_fails_only_its_sample(real: Running) -> None:
    thin = prompt(5, Image(PilImage.new("RGB", (1, 1000)), "thin"), "What is it?")
    first, error = real.generate(question(0), thin)
    assert isinstance(first, Reply)
    assert isinstance(error, SampleError) and "document 5" in str(error)


def test_the_final_part_of_thinking_is_kept_if_the_whole_thinking_does_not_fit(real: Running) -> None:
    """A server cannot truncate it."""
    thinking = " ".join(f"Step {i} looks at bar {i}." for i in range(3000)) + "and the last word is zebra"
    too_long = prompt(0, make_image(), "How many bars are there?\n", f"Reference: {thinking}\nAnswer.")
    sampling = Sampling(max_tokens=300, ignore_eos=True)
    (error,) = real.generate(too_long, sampling=sampling)
    assert isinstance(error, PromptTooLong)
    truncating = real.engine.truncate_thinking(too_long, thinking, sampling)
    if isinstance(real.engine, OpenAIEngine):
        with pytest.raises(PromptTooLong):
            real.loop.run(truncating)
        return
    kept, dropped = real.loop.run(truncating)
    assert thinking.endswith(kept) and kept.endswith(" zebra") and dropped > 0
    assert dropped + real.engine.count_tokens(kept) == real.engine.count_tokens(thinking)
    fits = prompt(0, make_image(), "How many bars are there?\n", f"Reference: {kept}\nAnswer.")
    (call,) = real.generate(fits, sampling=sampling)
    assert 4096 - 256 - 8 <= call.prompt_tokens <= 4096 - 256 + 8 and call.output_tokens >= 240
    crowded = prompt(0, make_image(), "yes and no " * 3000, f"Reference: {thinking}")
    with pytest.raises(PromptTooLong):
        real.loop.run(real.engine.truncate_thinking(crowded, thinking, sampling))
