"""lmms-eval in a process of its own: the large model and its arguments, and its end."""

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest

from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.plugin import MODEL_ID
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.times.whole import own_arguments, run_whole

pytestmark = pytest.mark.slow  # lmms-eval's import takes seconds


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_mode_large_has_the_engine_of_the_pair_and_its_arguments(engine: str) -> None:
    config = EngineConfig("large", engine, "/no/model", {"dtype": "float32"})
    parsed = parse(own_arguments(config))
    assert (parsed.mode, parsed.large) == ("large", config)


def test_a_run_that_is_stopped_ends_its_process_and_the_engines_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that outlives lmms-eval holds the pipe to which it writes."""
    started, engine = tmp_path / "started", f"sleep 9{os.getpid()}"
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{engine} &\ntouch {started}\nexec {engine}\n")
    python.chmod(0o755)
    config = EngineConfig("large", "vllm", "org/model")

    async def stop() -> None:
        task = asyncio.ensure_future(run_whole(MODEL_ID, config, "shapes_r", None, 1, 4))
        while not started.exists():
            await asyncio.wait({task}, timeout=0.01)
            assert not task.done(), task
        task.cancel()
        await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 60)

    monkeypatch.setattr(sys, "executable", str(python))
    asyncio.run(stop())
    assert engine.split() not in [one.info["cmdline"] for one in psutil.process_iter(["cmdline"])]
