"""A whole evaluation by lmms-eval in a process of its own: with its own `vllm` model, or with this package.

    python -m lmms_eval_mai.times.whole JOB

JOB has the arguments of `evaluate` as JSON. The process prints one line: the seconds in which it generated.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.plugin import MODEL_ID
from lmms_eval_mai.redaction import one_line

MARK = "lmms-eval-mai bench: "
"""Begins the line of the process with its seconds."""


async def run_whole(
    model: str, config: EngineConfig, task: str, include_path: str | None, limit: int, max_new_tokens: int
) -> float:
    """Run a process to its end. Returns the seconds in which it generated. Raises `MaiError`.

    `config`: the large model's engine. Every answer of both models has the same limit of tokens.
    """
    arguments = own_arguments(config) if model == MODEL_ID else vllm_arguments(config, max_new_tokens)
    job = json.dumps([model, arguments, task, include_path, limit, max_new_tokens])
    # Not a process of asyncio: one that is cancelled before it has connected the pipe loses the process.
    process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
        [sys.executable, "-m", __name__, job],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await asyncio.to_thread(process.communicate)
    except BaseException:  # the measurement was stopped
        # Its engines too: those of lmms-eval's own model do not notice the end of their parent, and would keep the
        # pipe open, which the thread reads.
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    lines = output.decode(errors="replace").splitlines()
    found = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    if process.returncode or not found:
        cause = next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "no output")
        raise MaiError(f"lmms-eval with --model {model} failed ({one_line(cause)[:300].rstrip('.')}).")
    return float(found[-1])


def own_arguments(config: EngineConfig) -> dict[str, Any]:
    """Return the arguments of `mai_cascade` with mode=large."""
    given = {f"large_{name}": value for name, value in config.arguments.items()}
    return {"mode": "large", "large": config.model, "large_engine": config.engine, "store": "off", **given}


def vllm_arguments(config: EngineConfig, max_new_tokens: int) -> dict[str, Any]:
    """Return the arguments of lmms-eval's `vllm` model: those of the engine, and on a CPU those without which it does
    not start (vLLM would take almost the whole memory) or compiles for minutes."""
    from lmms_eval_mai.engines.vllm.configuration import configure
    from lmms_eval_mai.engines.vllm.environment import engine_environment

    given = {"model": os.path.expanduser(config.model), "max_new_tokens": max_new_tokens, **config.arguments}
    with engine_environment([config]) as machine:
        planned = configure(config, [config], machine).vllm_config
    if machine.platform == "cpu":
        given.setdefault("max_model_len", planned.model_config.max_model_len)
        given.setdefault("kv_cache_memory_bytes", planned.cache_config.kv_cache_memory_bytes)
        given.setdefault("enforce_eager", True)
    return given


def evaluate(
    name: str, arguments: dict[str, Any], task: str, include_path: str | None, limit: int, max_new_tokens: int
) -> float:
    """Evaluate in this process. Returns the seconds of the generation: from the requests to all answers, with opening
    and encoding of the images and without starts of engines. lmms-eval's own model gets all documents as one batch."""
    from lmms_eval.evaluator import simple_evaluate
    from lmms_eval.models import get_model

    from lmms_eval_mai.harness.documents import task_manager
    from lmms_eval_mai.harness.model import MaiCascade

    own = name == MODEL_ID
    Model: Any = MaiCascade if own else get_model(name)

    class Timed(Model):
        """Measures its own time."""

        generation_s = 0.0

        def generate_until(self, requests: Any) -> Any:
            began = time.perf_counter()
            found = super().generate_until(requests)
            self.generation_s += time.perf_counter() - began
            return found

    model = Timed(**arguments, **({} if own else {"batch_size": limit}))
    simple_evaluate(
        model=model,
        tasks=[task],
        task_manager=task_manager([task], include_path),
        batch_size=limit,
        limit=limit,
        gen_kwargs=f"max_new_tokens={max_new_tokens}",
    )
    # Our model starts its engines inside `generate_until`; its figures have the time without the start.
    return float(model.figures["wall_s"] if own else model.generation_s)


if __name__ == "__main__":
    print(f"\n{MARK}{evaluate(*json.loads(sys.argv[1]))}", flush=True)
