"""The transformers engine on the demo pair in fp32: its identity and closing. `test_contract.py` compares its answers
and log-probabilities with those of vLLM."""

import asyncio
import gc
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from support.engines import make_image, prompt

from lmms_eval_mai.contract import EngineConfig, Sampling
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.errors import EngineNotRunning, EngineStartError
from lmms_eval_mai.run import pairs

pytestmark = pytest.mark.slow

PAIR = pairs.load("demo")


def engine_of(path: str = PAIR["small"], **arguments: Any) -> Any:
    return build(EngineConfig("large", "transformers", path, {"dtype": "float32", **arguments}))


def test_identity_has_what_changes_an_answer_and_not_what_changes_the_speed() -> None:
    assert engine_of().identity() == engine_of(device="cpu").identity()
    others = [engine_of(max_model_len=512), engine_of(PAIR["large"]), engine_of(dtype="bfloat16")]
    assert len({engine.identity() for engine in (engine_of(), *others)}) == 4


def test_calls_that_wait_or_are_answered_while_the_engine_is_closed_raise_engine_crashed() -> None:
    """For each moment between the request and its answer."""
    asked = [prompt(i, make_image(size=(480, 320)), "Is it red? " * 200, "Think.") for i in range(6)]
    sampling = Sampling(max_tokens=1000, ignore_eos=True)

    async def run(seconds: float) -> list[Any]:
        engine = engine_of()
        await engine.start()
        calls = [asyncio.create_task(engine.generate(each, sampling)) for each in asked]
        calls.append(asyncio.create_task(engine.truncate_thinking(asked[0], "Think.", sampling)))
        await asyncio.sleep(seconds)
        await engine.close()
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)

    for seconds in (0, 0.01, 0.03, 0.1):
        errors = [answer for answer in asyncio.run(run(seconds)) if isinstance(answer, BaseException)]
        assert len(errors) >= len(asked) and all(isinstance(error, EngineNotRunning) for error in errors), errors


def loaded(path: Path) -> int:
    """Return how many models of a checkpoint are in memory."""
    from transformers import PreTrainedModel

    gc.collect()
    models = [found for found in gc.get_objects() if isinstance(found, PreTrainedModel)]
    return sum(model.config.name_or_path == str(path) and model.can_generate() for model in models)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_model_that_loads_while_the_engine_is_closed_is_dropped(
    tmp_path: Path, is_cancelled: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    path = shutil.copytree(PAIR["small"], tmp_path / "checkpoint")

    async def run() -> None:
        engine, before = engine_of(str(path)), threading.enumerate()
        start = asyncio.create_task(engine.start())
        await asyncio.sleep(0.01)
        threads = [thread for thread in threading.enumerate() if thread not in before]
        if is_cancelled:  # as the start of two engines does if the other engine fails
            start.cancel()
        await engine.close()
        with pytest.raises(asyncio.CancelledError if is_cancelled else EngineStartError):
            await start
        for thread in threads:  # the model is loaded to its end
            await asyncio.to_thread(thread.join)
        assert threads and loaded(path) == 0
        await engine.start()
        assert loaded(path) == 1
        await engine.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert "Loading weights" not in "".join(capfd.readouterr())
