"""The measurement of a profile: on an engine whose times are known, and on a tiny model."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.engines import Running

from lmms_eval_mai.contract import Call, Prompt, Sampling
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.errors import ArgumentError, PromptTooLong
from lmms_eval_mai.times.call_times import CallTimes
from lmms_eval_mai.times.measure import Plan, Size, measure, measure_vision, short_name
from lmms_eval_mai.times.profile import Profile, table

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


def measured(engine: Any, plan: Plan = PLAN) -> tuple[Profile, list[Size]]:
    rows, too_long = asyncio.run(measure(engine, plan, lambda line: None))
    return Profile("x", "x", "x", table(rows)), too_long


def cells(profile: Profile, kind: str, *columns: str) -> list[tuple[float, ...]]:
    return [tuple(row) for row in profile.of(kind)[list(columns)].to_numpy().tolist()]


def test_cells_have_the_sizes_of_the_plan_and_the_times_of_the_engine_and_predict_other_calls() -> None:
    found, too_long = measured(KnownTimes())
    assert cells(found, "ttft", "image", "image_tokens", "text_tokens", "output_tokens") == [
        (64, 4, 20, 1), (64, 4, 60, 1), (128, 16, 20, 1), (128, 16, 60, 1),
    ]  # fmt: skip
    assert found.of("ttft")["median"].tolist() == pytest.approx([0.024, 0.064, 0.036, 0.076])
    assert sorted(cells(found, "decoding", "text_tokens", "output_tokens", "repeats")) == [
        (20, 2, 2), (20, 10, 2), (60, 2, 2), (60, 10, 2),
    ]  # fmt: skip
    assert sorted(found.of("decoding")["mean"]) == pytest.approx([0.034, 0.086, 0.114, 0.166])
    assert cells(found, "batches", "batch_size", "image_tokens", "text_tokens", "output_tokens") == [
        (1, 4, 20, 1), (1, 4, 20, 3), (4, 4, 20, 1), (4, 4, 20, 3),
    ]  # fmt: skip
    assert too_long == []
    calls = pd.DataFrame({"prompt_tokens": [50, 504], "image_tokens": [10, 4], "output_tokens": [100, 1]})
    assert CallTimes(found).of(calls)["single_s"].tolist() == pytest.approx([0.05 + 0.99, 0.504])


def test_each_round_measures_every_cell_once_with_an_image_of_its_own_in_each_request() -> None:
    engine = KnownTimes()
    asyncio.run(measure(engine, PLAN, lambda line: None, batches=False))
    assert len(engine.seen) == len(set(engine.seen)) > 30  # so no cache helps
    rounds = [engine.cells[start : start + 4] for start in range(-12, 0, 4)]  # a warm-up, and two repeats
    assert rounds[0] == rounds[1] == engine.cells[-4:] == [(24, 2), (24, 10), (76, 2), (76, 10)]


def test_cells_beyond_the_context_are_left_out_and_named() -> None:
    found, too_long = measured(KnownTimes(context=70))
    assert cells(found, "ttft", "image", "text_tokens") == [(64, 20), (64, 60), (128, 20)]
    assert set(cells(found, "decoding", "image", "text_tokens")) == {(64, 20)}
    assert too_long == [(128, 60)]
    with pytest.raises(ArgumentError, match="Every prompt of the profile is too long"):
        measured(KnownTimes(context=20))


def test_an_answer_that_the_context_cuts_off_is_left_out() -> None:
    class Cut(KnownTimes):
        async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
            call = await super().generate(prompt, sampling)
            return dataclasses.replace(call, output_tokens=min(call.output_tokens, 80 - call.prompt_tokens))

    found, _ = measured(Cut())
    assert set(cells(found, "decoding", "image", "text_tokens")) == {(64, 20)}


def test_a_model_of_a_pair_has_the_name_of_the_pair_too() -> None:
    names = map(short_name, ("Qwen/Qwen3-VL-2B-Instruct", "/x/pairs/demo/small", "/x/tiny/"))
    assert list(names) == ["Qwen3-VL-2B-Instruct", "demo-small", "tiny"]


def test_vllm_decodes_exact_numbers_of_tokens_after_prompts_of_exact_lengths(vllm: Running) -> None:
    sizes = ((64, 20), (64, 60), (256, 20), (256, 60))  # this model makes images larger or smaller
    plan = dataclasses.replace(PLAN, ttft=sizes, decoding=sizes[::3], repeats=1, slow_repeats=1)
    rows, _ = vllm.loop.run(measure(vllm.engine, plan, lambda line: None))
    found = Profile("x", "x", "x", table(rows))
    assert found.of("ttft")["image_tokens"].tolist() == [36, 36, 64, 64]
    texts = found.of("ttft")["text_tokens"]
    assert all(abs(tokens - wanted) <= 1 for tokens, wanted in zip(texts, (20, 60, 20, 60), strict=True))
    assert (found.rows["seconds"] > 0).all()
    assert len(found.of("decoding")) == 4 and len(found.of("batches")) == 4


@pytest.mark.slow
def test_preprocessing_and_vision_encoder_are_measured_without_an_engine(tiny_pair: tuple[Path, Path]) -> None:
    found = Profile("x", "x", "x", table(measure_vision(str(tiny_pair[0]), "cpu", "float32", {}, (64, 256), 3)))
    for kind in ("preprocessing", "vision"):
        assert cells(found, kind, "image", "image_tokens", "repeats") == [(64, 36, 3), (256, 64, 3)]
    assert (found.rows["least"] > 0).all() and (found.rows["least"] <= found.rows["seconds"]).all()
