"""Reads the GPUs from NVML."""

from lmms_eval_mai.engines.vllm.planning.gpus import Gpu


def visible_gpus() -> tuple[Gpu, ...]:
    return ()
