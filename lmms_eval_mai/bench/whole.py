"""A whole evaluation by lmms-eval in a process of its own: with its own `vllm` model, or with this package.

    python -m lmms_eval_mai.bench.whole JOB

JOB has the fields of `Job` as JSON. The process prints one line of JSON: the seconds in which it generated.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lmms_eval_mai.bench.documents import Documents, DrawnSource
from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.plugin import MODEL_ID, task_dir
from lmms_eval_mai.redaction import one_line

MARK = "lmms-eval-mai bench: "
"""Begins the line of the process with its figures."""


@dataclass(frozen=True)
class Job:
    """One evaluation."""

    model: str
    """Name of lmms-eval's model."""
    arguments: Mapping[str, Any]
    task: str
    include_path: str | None
    """A folder with more tasks."""
    limit: int
    """The number of documents. lmms-eval's own model gets all of them as one batch."""
    max_new_tokens: int


async def run_whole(model: str, config: EngineConfig, documents: Documents, max_new_tokens: int) -> float:
    """Run a process to its end. Returns the seconds in which it generated. Raises `MaiError`.

    `config`: the large model's engine. Every answer of both models has the same limit of tokens.
    """
    config = with_absolute_path(config)
    arguments = own_arguments(config) if model == MODEL_ID else vllm_arguments(config, max_new_tokens)
    source = documents.source
    job = Job(model, arguments, source.task, source.include_path, documents.count, max_new_tokens)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # killed processes may still write into it
        place, environment = os.getcwd(), dict(os.environ)
        if isinstance(documents.source, DrawnSource):  # lmms-eval loads a data set of this name from where it runs
            documents.source.charts.write(Path(folder))
            place = folder
            environment["HF_DATASETS_CACHE"] = os.path.join(folder, "cache")
        command = [sys.executable, "-m", __name__, json.dumps(asdict(job))]
        # Not a process of asyncio: one that is cancelled before it has connected the pipe loses the process.
        process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
            command,
            cwd=place,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = await asyncio.to_thread(process.communicate)
        except BaseException:  # the measurement was stopped; the process still writes into the folder
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
    return float(json.loads(found[-1])["generation_s"])


def with_absolute_path(config: EngineConfig) -> EngineConfig:
    """Return the configuration with an absolute path of its checkpoint: the process may run in another folder. A name
    on the hub stays."""
    path = Path(config.model).expanduser()
    return replace(config, model=str(path.absolute())) if path.is_dir() else config


def own_arguments(config: EngineConfig) -> dict[str, Any]:
    """Return the arguments of `mai_cascade` with mode=large."""
    given = {f"large_{name}": value for name, value in config.arguments.items()}
    return {"mode": "large", "large": config.model, "large_engine": config.engine, "journal": "off", **given}


def vllm_arguments(config: EngineConfig, max_new_tokens: int) -> dict[str, Any]:
    """Return the arguments of lmms-eval's `vllm` model: those of the engine, and on a CPU those without which it does
    not start (vLLM would take almost the whole memory) or compiles for minutes."""
    from lmms_eval_mai.engines.vllm.configuration import configure
    from lmms_eval_mai.engines.vllm.environment import detect_platform

    given = {"model": config.model, "max_new_tokens": max_new_tokens, **config.arguments}
    if detect_platform() == "cpu":
        planned = configure(config, None).vllm_config
        given.setdefault("max_model_len", planned.model_config.max_model_len)
        given.setdefault("kv_cache_memory_bytes", planned.cache_config.kv_cache_memory_bytes)
        given.setdefault("enforce_eager", True)
    return given


def evaluate(job: Job) -> float:
    """Evaluate in this process. Returns the seconds of the generation: from the requests to all answers, with opening
    and encoding of the images and without starts of engines."""
    from lmms_eval.evaluator import simple_evaluate
    from lmms_eval.models import get_model
    from lmms_eval.tasks import TaskManager

    from lmms_eval_mai.harness.model import MaiCascade

    Model: Any = get_model(job.model) if job.model != MODEL_ID else MaiCascade

    class Timed(Model):
        """Measures its own time."""

        generation_s = 0.0

        def generate_until(self, requests: Any) -> Any:
            began = time.perf_counter()
            found = super().generate_until(requests)
            self.generation_s += time.perf_counter() - began
            return found

    arguments = dict(job.arguments)
    if job.model != MODEL_ID:
        arguments["batch_size"] = job.limit
    model = Timed(**arguments)
    ours = any(path.stem == job.task for path in task_dir().rglob("*.yaml"))
    manager = (
        TaskManager(include_path=str(task_dir()), include_defaults=False)
        if ours
        else TaskManager(include_path=job.include_path)
    )
    simple_evaluate(
        model=model,
        tasks=[job.task],
        task_manager=manager,
        batch_size=job.limit,
        limit=job.limit,
        gen_kwargs=f"max_new_tokens={job.max_new_tokens}",
    )
    # Our model starts its engines inside `generate_until`; its figures have the time without the start.
    return float(model.figures["wall_s"] if job.model == MODEL_ID else model.generation_s)


def main() -> None:
    """Run the job of the command line."""
    generation_s = evaluate(Job(**json.loads(sys.argv[1])))
    print(f"\n{MARK}{json.dumps({'generation_s': generation_s})}", flush=True)


if __name__ == "__main__":
    main()
