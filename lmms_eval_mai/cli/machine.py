"""The devices of this machine, and what the engines of a command do on them."""

import os
from collections.abc import Iterator

from lmms_eval_mai.cli import gpu_report
from lmms_eval_mai.cli.findings import Finding, error_text
from lmms_eval_mai.cli.gpus import Gpu
from lmms_eval_mai.engines.vllm import machine_checks
from lmms_eval_mai.engines.vllm.environment import Launcher
from lmms_eval_mai.engines.vllm.gpu_memory import GIB
from lmms_eval_mai.run.config import Config, parse


def visible_gpus() -> list[Gpu]:
    """Return the GPUs that vLLM can use; none if vLLM is not installed. It reads them from NVML: torch would open a
    context on each of them."""
    try:
        from vllm.platforms import current_platform
    except ImportError:
        return []
    if not current_platform.is_cuda_alike():
        return []
    return [
        Gpu(current_platform.get_device_name(number), machine_checks.memory_bytes(number))
        for number in range(current_platform.device_count())
    ]


def devices() -> str:
    """Return the GPUs, or the cores and the memory of a machine without one."""
    import psutil

    if gpus := visible_gpus():
        return "; ".join(
            f"{number}: {gpu.name}, {gpu.total_bytes / GIB:.0f} GiB{_mode(number)}" for number, gpu in enumerate(gpus)
        )
    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0))
    free = f"{memory.available / GIB:.0f} of {memory.total / GIB:.0f} GiB of memory free"
    return f"no GPU that vLLM can use; {cores} CPU cores, {free}"


def _mode(number: int) -> str:
    mode = machine_checks.compute_mode(number)
    return "" if mode == "DEFAULT" else f", compute mode {mode}"


def plan(given: Config | None) -> Iterator[Finding]:
    """Show how the models share the GPUs. None: no arguments were given, so the default pair is shown."""
    config = given or parse({})
    if not any(engine.engine == "vllm" for engine in config.engines()):
        return
    gpus = visible_gpus()
    if not gpus:
        hint = "there is no GPU here. `lmms-eval-mai doctor --gpus L4` shows how the models share another machine's."
        yield Finding("memory", "skipped", hint)
        return
    try:
        lines, fits = gpu_report.describe(config, gpus, Launcher.from_environment())
    except Exception as error:
        if given is None:  # else the engines' findings have this error
            yield Finding("memory", "PROBLEM", error_text(error))
        return
    yield Finding("memory", "ok" if fits else "warning", "\n".join(lines))
