"""The time at which a call started."""

import asyncio
import time

from support.samples import sample

from lmms_eval_mai.contract import Call, CallKey, Prompt, Sampling
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.run.measured_engine import MeasuredEngine

SECONDS = 0.05


def test_a_call_has_the_unix_time_of_its_start() -> None:
    def slow(prompt: Prompt) -> Answer:
        return Answer("[[yes]]", prompt_tokens=1, output_tokens=1, seconds=SECONDS)

    async def ask() -> Call:
        engine = MeasuredEngine(ScriptedEngine("small", slow, ScriptedOptions()))
        await engine.start()
        prompt = Prompt(sample().question, CallKey("pope_s", 0, 0, "small", "short"))
        return await engine.generate(prompt, Sampling(max_tokens=4))

    before = time.time()
    call = asyncio.run(ask())
    after = time.time()
    assert call.started_at is not None and call.total_s >= SECONDS
    assert before - 1e-3 <= call.started_at <= after - call.total_s
