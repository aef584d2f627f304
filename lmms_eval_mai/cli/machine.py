"""The devices of this machine, and what the engines of a command do on them."""

import os
from collections.abc import Iterator, Sequence

from lmms_eval_mai.cli import gpu_report
from lmms_eval_mai.cli.findings import Finding, error_text
from lmms_eval_mai.engines.vllm import machine_checks, nvml
from lmms_eval_mai.engines.vllm.gpu_plan import on_gpus
from lmms_eval_mai.engines.vllm.placement import Launcher
from lmms_eval_mai.engines.vllm.planning.memory import GIB
from lmms_eval_mai.run.config import Config, parse


def devices() -> str:
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


def plan(given: Config | None) -> Iterator[Finding]:
    """Show the plan of the GPU memory, and check this machine for the engines of the plan. None: no arguments were
    given, so the default pair is planned."""
    config = given or parse({})
    gpus, launcher = nvml.visible_gpus(), Launcher.from_environment()
    engines = [engine for engine in config.engines() if engine.engine == "vllm"]
    if not engines:
        return
    if not gpus:
        hint = "NVML shows no GPU here. `lmms-eval-mai doctor --gpus L4` shows the plan of another machine's GPUs."
        yield Finding("plan", "skipped", hint)
        return
    try:
        machine_checks.check_readable(engines, gpus)
        if not all(gpu.readable for gpu in gpus):
            return  # the user gives the memory of each engine, so there is no plan
        shown = _shown(config, gpus, launcher)
        places = on_gpus(engines, gpus, launcher, config.sleep)
    except Exception as error:
        if given is None:  # else the engines' findings have this error
            yield Finding("plan", "PROBLEM", error_text(error))
        return
    placed = [machine_checks.PlacedEngine(engine, places[engine.side].place.gpus) for engine in engines]
    for problem in machine_checks.problems(placed, gpus, machine_checks.Machine.here()):
        if problem.level == "warning" or (problem.level == "refusal" and given is None):
            yield Finding("machine", "PROBLEM" if problem.level == "refusal" else "warning", problem.text)
    yield shown


def _shown(config: Config, gpus: Sequence[nvml.VisibleGpu], launcher: Launcher) -> Finding:
    try:
        lines = gpu_report.describe(config, gpus, launcher, mps=machine_checks.mps_runs())
    except gpu_report.NoPlan as error:
        return Finding("plan", "skipped", str(error))
    return Finding("plan", "ok", "\n".join(lines))
