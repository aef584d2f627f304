"""The measurement of a profile: on an engine whose times are known, and on a tiny model."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.engines import Running

from lmms_eval_mai.contract import Call, Prompt, Sampling
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.errors import ArgumentError, PromptTooLong
from lmms_eval_mai.latency.measure import Measurements, measure, short_name
from lmms_eval_mai.latency.plan import FULL, QUICK, Plan
from lmms_eval_mai.latency.repeats import seconds_of
from lmms_eval_mai.profiles.profile import Profile
from lmms_eval_mai.profiles.times import ProfileTimes

PLAN = Plan(
    images=(64,),
    ttft=((64, 20), (64, 60), (128, 20), (128, 60)),
    decoding=((64, 20), (128, 60)),
    output_tokens=(2, 10),
    batch_sizes=(1, 4),
    batches=((64, 20),),
    batch_output_tokens=3,
    repeats=3,
    slow_repeats=2,
)
TEMPLATE = 7
"""Tokens of the template of `KnownTimes`."""


class KnownTimes(ScriptedEngine):
    """An engine whose tokens are words and whose times are known: 1 ms per prompt token and 10 ms per later token."""

    def __init__(self, context: int = 1000) -> None:
        super().__init__("large", lambda prompt: Answer(""), ScriptedOptions())
        self.context = context
        self.seen: list[str] = []
        self.cells: list[tuple[int, int]] = []

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        image, text = prompt.messages[0].content
        assert not isinstance(image, str) and isinstance(text, str) and sampling.ignore_eos
        self.seen.append(image.pixels.tobytes().hex())
        image_tokens = (image.pixels.width // 32) ** 2
        tokens = image_tokens + TEMPLATE + self.count_tokens(text)
        self.cells.append((tokens, sampling.max_tokens))
        if tokens + sampling.max_tokens > self.context:
            raise PromptTooLong("too long")
        total_s = 0.001 * tokens + 0.01 * (sampling.max_tokens - 1)
        return Call(
            prompt.key, "", "length", tokens, 0, sampling.max_tokens, None, None, total_s, image_tokens=image_tokens
        )


def measured(engine: Any, plan: Plan = PLAN) -> Measurements:
    return asyncio.run(measure(engine, plan, lambda line: None))


def test_cells_have_the_sizes_of_the_plan_and_the_times_of_the_engine() -> None:
    found = measured(KnownTimes())
    assert [(p.image, p.image_tokens, p.text_tokens) for p in found.ttft] == [
        (64, 4, 20), (64, 4, 60), (128, 16, 20), (128, 16, 60),
    ]  # fmt: skip
    assert [p.seconds.median for p in found.ttft] == pytest.approx([0.024, 0.064, 0.036, 0.076])
    assert [(p.text_tokens, p.output_tokens, p.seconds.repeats) for p in found.decoding] == [
        (20, 2, 2), (60, 2, 2), (20, 10, 2), (60, 10, 2),
    ]  # fmt: skip
    assert [p.seconds.mean for p in found.decoding] == pytest.approx([0.034, 0.086, 0.114, 0.166])
    assert [(p.batch_size, p.image_tokens, p.text_tokens, p.output_tokens) for p in found.batches] == [
        (1, 4, 20, 3), (4, 4, 20, 3),
    ]  # fmt: skip
    assert found.too_long == ()


def test_a_measured_profile_predicts_calls_of_other_sizes() -> None:
    found = measured(KnownTimes())
    times = ProfileTimes(Profile("x", "x", "x", ttft=found.ttft, decoding=found.decoding))
    assert times.call(10 + 40, 100, image_tokens=10).corrected_s == pytest.approx(0.05 + 0.99)
    assert times.call(4 + 500, 1, image_tokens=4).corrected_s == pytest.approx(0.504)


def test_each_request_has_an_image_of_its_own_so_that_no_cache_helps() -> None:
    engine = KnownTimes()
    measured(engine)
    assert len(engine.seen) == len(set(engine.seen)) > 50


def test_each_round_measures_every_cell_once() -> None:
    engine = KnownTimes()
    asyncio.run(measure(engine, PLAN, lambda line: None, batches=False))
    rounds = [engine.cells[start : start + 4] for start in range(-12, 0, 4)]  # a warm-up, and two repeats
    assert rounds[0] == rounds[1] == engine.cells[-4:] == [(24, 2), (76, 2), (24, 10), (76, 10)]


def test_cells_beyond_the_context_are_left_out_and_named() -> None:
    found = measured(KnownTimes(context=70))
    assert [(p.image, p.text_tokens) for p in found.ttft] == [(64, 20), (64, 60), (128, 20)]
    assert {(p.image, p.text_tokens) for p in found.decoding} == {(64, 20)}
    assert found.too_long == ((128, 60),)
    with pytest.raises(ArgumentError, match="Every prompt of the profile is too long"):
        measured(KnownTimes(context=20))


def test_an_answer_that_the_context_cuts_off_is_left_out() -> None:
    class Cut(KnownTimes):
        async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
            call = await super().generate(prompt, sampling)
            return dataclasses.replace(call, output_tokens=min(call.output_tokens, 80 - call.prompt_tokens))

    assert {(p.image, p.text_tokens) for p in measured(Cut()).decoding} == {(64, 20)}


def test_the_plan_of_the_paper_has_its_cells_and_longer_prompts() -> None:
    assert FULL.images == (256, 512, 1024, 2048, 4096) and FULL.output_tokens == (8, 128, 256, 512)
    assert {(image, text) for image in (256, 512, 1024) for text in (64, 256, 512)} < set(FULL.ttft)
    assert max(text for _, text in FULL.ttft) + 1024 == 8192
    assert FULL.batch_sizes == QUICK.batch_sizes == (1, 8, 32, 128)
    assert (FULL.repeated(2).repeats, FULL.repeated(2).slow_repeats) == (2, 2)


def test_repeats_have_mean_median_and_spread() -> None:
    found = seconds_of([1.0, 2.0, 6.0])
    assert dataclasses.astuple(found) == (3.0, 2.0, pytest.approx(7**0.5), 1.0, 6.0, 3)
    assert (seconds_of([1.0]).deviation, found.typical) == (None, 2.0)


def test_a_model_of_a_pair_has_the_name_of_the_pair_too() -> None:
    names = map(short_name, ("Qwen/Qwen3-VL-2B-Instruct", "/x/pairs/demo/small", "/x/tiny/"))
    assert list(names) == ["Qwen3-VL-2B-Instruct", "demo-small", "tiny"]


def test_vllm_decodes_exact_numbers_of_tokens_after_prompts_of_exact_lengths(vllm: Running) -> None:
    cells = ((64, 20), (64, 60), (256, 20), (256, 60))  # this model makes images larger or smaller
    plan = dataclasses.replace(PLAN, ttft=cells, decoding=cells[::3], repeats=1, slow_repeats=1)
    found: Measurements = vllm.loop.run(measure(vllm.engine, plan, lambda line: None))
    assert [p.image_tokens for p in found.ttft] == [36, 36, 64, 64]
    assert all(abs(p.text_tokens - wanted) <= 1 for p, wanted in zip(found.ttft, (20, 60, 20, 60), strict=True))
    assert all(p.seconds.typical > 0 for p in (*found.ttft, *found.decoding, *found.batches))
    assert len(found.decoding) == 4 and len(found.batches) == 2


@pytest.mark.slow
def test_preprocessing_and_vision_encoder_are_measured_without_an_engine(tiny_pair: tuple[Path, Path]) -> None:
    from lmms_eval_mai.latency.vision import VisionTower

    plan = dataclasses.replace(PLAN, images=(64, 256))
    preprocessing, vision = VisionTower(str(tiny_pair[0]), "cpu", "float32", {}).measure(plan)
    for points in (preprocessing, vision):
        assert [(p.image, p.image_tokens, p.seconds.repeats) for p in points] == [(64, 36, 3), (256, 64, 3)]
        assert all(p.seconds.least is not None and 0 < p.seconds.least <= p.seconds.typical for p in points)
