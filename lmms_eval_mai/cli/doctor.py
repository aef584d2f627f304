"""`lmms-eval-mai doctor`: checks the installation, and what a given lmms-eval command would start and where."""

import asyncio
import dataclasses
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from lmms_eval_mai.cli import gpu_report
from lmms_eval_mai.engines.base import Engine, EngineConfig
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.vllm import machine_checks, nvml
from lmms_eval_mai.engines.vllm.gpu_plan import on_gpus
from lmms_eval_mai.engines.vllm.placement import Launcher
from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.plugin import MODEL_ID, task_dir
from lmms_eval_mai.redaction import error_text
from lmms_eval_mai.run.config import Config, parse

GIB = 1 << 30
INDENT = 10
"""Columns before the further lines of a text."""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    ok: bool
    text: str
    """What was found. If it is not ok, also what to do."""
    required: bool = True
    """Whether the package cannot work without it. An optional check that fails is not a problem."""


def examine(model_args: str | None = None, tasks: str | None = None) -> Iterator[Finding]:
    """Return the findings one by one, because some checks take seconds. `model_args`, `tasks`: those of the command.

    The arguments come first: a typo in them is then shown before the slow imports.
    """
    config = None
    if model_args is not None:
        config, finding = check_arguments(model_args)
        yield finding
    yield from _packages()
    yield _tried("devices", _devices, "Run `pip install torch psutil`.")
    yield from _registered([task for task in (tasks or "").split(",") if task])
    yield from check_engines(config)
    if config is not None or model_args is None:
        yield from _machine(config)


def report(findings: Iterable[Finding]) -> int:
    """Print the findings as they come. Returns the exit code."""
    problems = 0
    for finding in findings:
        mark = "ok" if finding.ok else "PROBLEM" if finding.required else "optional"
        problems += mark == "PROBLEM"
        text = finding.text.replace("\n", "\n" + " " * INDENT)
        print(f"{mark:>8}  {finding.name:<14} {text}", flush=True)
    print(f"\n{problems} problem{'s' * (problems != 1)}." if problems else "\nNo problem found.")
    return 1 if problems else 0


def check_arguments(model_args: str) -> tuple[Config | None, Finding]:
    """Parse the model arguments as lmms-eval and the model do. Returns None if they are wrong."""
    from lmms_eval.utils import simple_parse_args_string

    try:
        config = parse(simple_parse_args_string(model_args))
    except Exception as error:
        return None, Finding("arguments", False, _error_text(error))
    return config, Finding("arguments", True, f"mode={config.mode}, think={config.think}")


def _packages() -> Iterator[Finding]:
    from lmms_eval_mai.engines.vllm.arguments import INSTALL

    supported = (3, 11) <= sys.version_info < (3, 13)
    version = sys.version.split()[0]
    yield Finding("python", supported, version if supported else f"{version}. Use Python 3.11 or 3.12.")
    remedies = {
        "lmms_eval": "Run `pip install lmms-eval`.",
        "torch": "Run `pip install torch`.",
        "transformers": "Run `pip install transformers`, if you want engine=transformers.",
        "openai": "Run `pip install openai`, if you want endpoints (small=http://...).",
        "vllm": f"engine=vllm needs vllm. {INSTALL}",
    }
    for name, remedy in remedies.items():
        try:
            module = importlib.import_module(name)
        except Exception as error:
            text = f"cannot be imported ({_error_text(error)}). {remedy}"
            yield Finding(name, False, text, required=name in ("lmms_eval", "torch"))
        else:
            version = getattr(module, "__version__", None) or importlib.metadata.version(name.replace("_", "-"))
            yield Finding(name, True, str(version))


def _devices() -> str:
    """Return the GPUs, from NVML. torch would open a CUDA context on each of them to read its memory."""
    import psutil
    import torch

    if gpus := nvml.visible_gpus():
        return "; ".join(f"{number}: {_gpu(gpu)}" for number, gpu in enumerate(gpus))
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        return f"{count} GPU{'s' * (count != 1)}. NVML does not know them, so their memory is not shown here"
    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0))
    free = f"{memory.available / GIB:.0f} of {memory.total / GIB:.0f} GiB of memory free"
    return f"no GPU that PyTorch can use; {cores} CPU cores, {free}"


def _gpu(gpu: nvml.VisibleGpu) -> str:
    memory = "memory unknown"
    if gpu.readable:
        memory = f"{gpu.free_bytes / GIB:.0f} of {gpu.total_bytes / GIB:.0f} GiB free"
    mode = "" if gpu.compute_mode == "default" else f", compute mode {gpu.compute_mode}"
    return f"{gpu.name}, {memory}{mode}"


def _registered(tasks: list[str]) -> Iterator[Finding]:
    """Check that lmms-eval knows our model, our tasks and these tasks."""
    try:
        from lmms_eval.models import get_model
        from lmms_eval.tasks import TaskManager

        get_model(MODEL_ID)
        known = set(TaskManager().all_tasks)
    except Exception as error:
        text = f"cannot be loaded ({_error_text(error).rstrip('.')}). Install lmms-eval-mai again."
        yield Finding("model", False, text)
        return
    yield Finding("model", True, f"lmms-eval knows {MODEL_ID}")
    ours = {path.stem for path in task_dir().rglob("*.yaml") if path.parent.name != "groups"}
    missing = sorted(ours - known)
    if missing:
        remedy = "The warnings above say why; if there are none, install lmms-eval-mai again."
        yield Finding("tasks", False, f"lmms-eval does not know {', '.join(missing)}. {remedy}")
    else:
        yield Finding("tasks", True, f"lmms-eval knows pope_s and {len(ours) - 1} more of our tasks in {task_dir()}")
    for task in tasks:
        if task not in known:
            yield Finding("tasks", False, f"{task} is unknown: `lmms-eval --tasks list` shows all tasks.")


def check_engines(config: Config | None) -> Iterator[Finding]:
    """Check the engines that a run with this configuration would use. None: no arguments were given, or they are
    wrong."""
    if config is not None:
        yield from (_engine(config, engine) for engine in config.engines())


def _engine(config: Config, engine_config: EngineConfig) -> Finding:
    """Check one engine without starting it. An endpoint is asked whether it answers."""
    if engine_config.engine == "openai":
        engine_config = dataclasses.replace(engine_config, arguments={**engine_config.arguments, "retry_for": 0})
    try:
        engine = build(engine_config, config.other(engine_config), config.sleep)
        engine.validate()
        if engine_config.engine == "openai":
            asyncio.run(_start_and_close(engine))
        text = f"{engine_config.engine} {engine_config.model}: {engine.describe()}"
        return Finding(engine_config.side, True, text)
    except Exception as error:
        return Finding(engine_config.side, False, _error_text(error))


def _machine(given: Config | None) -> Iterator[Finding]:
    """Show the plan of the GPU memory, and check this machine for the engines of the plan. None: no arguments were
    given, so the default pair is planned."""
    config = given or parse({})
    gpus, launcher = nvml.visible_gpus(), Launcher.from_environment()
    engines = [engine for engine in config.engines() if engine.engine == "vllm"]
    if not engines or not gpus:
        return
    try:
        machine_checks.check_readable(engines, gpus)
        if not all(gpu.readable for gpu in gpus):
            return  # the user gives the memory of each engine, so there is no plan
        lines = gpu_report.describe(config, gpus, launcher, mps=machine_checks.mps_runs())
        places = on_gpus(engines, gpus, launcher, config.sleep)
    except Exception as error:
        if given is None:  # else the engines' findings have this error
            yield Finding("plan", False, _error_text(error))
        return
    placed = [machine_checks.PlacedEngine(engine, places[engine.side].place.gpus) for engine in engines]
    for problem in machine_checks.problems(placed, gpus, machine_checks.Machine.here()):
        if problem.level == "warning" or (problem.level == "refusal" and given is None):
            yield Finding("machine", False, problem.text, required=problem.level == "refusal")
    yield Finding("plan", True, "\n".join(lines))


async def _start_and_close(engine: Engine) -> None:
    await engine.start()
    await engine.close()


def _tried(name: str, find: Callable[[], str], remedy: str) -> Finding:
    try:
        return Finding(name, True, find())
    except Exception as error:
        return Finding(name, False, f"cannot be checked ({_error_text(error).rstrip('.')}). {remedy}")


def _error_text(error: Exception) -> str:
    """Return the message as one line: whole for errors of this package, shortened for errors of other libraries."""
    return " ".join(str(error).split()) if isinstance(error, MaiError) else error_text(error)
