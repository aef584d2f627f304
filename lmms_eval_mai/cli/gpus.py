"""For `lmms-eval-mai doctor`: the GPUs of this machine, or those of `--gpus`, and how two models share them."""

from collections.abc import Sequence

from tabulate import tabulate

from lmms_eval_mai.engines.vllm.gpu_memory import GIB, USABLE, shares
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.run.config import Config

HEADINGS = ("", "GPU", "share", "GiB", "weights GiB", "left GiB")


def parse_gpus(text: str) -> list[float]:
    """Return the memory of each GPU in GiB. Raises `ArgumentError`."""
    try:
        memories = [float(part) for part in text.split(",")]
    except ValueError:
        memories = []
    if not memories or min(memories) < 1:
        raise ArgumentError(f"--gpus {text} is invalid: give the memory of each GPU in GiB, such as 24 or 48,48.")
    return memories


def visible_gpus() -> str:
    """Return the number, the name and the memory of each GPU that vLLM can use."""
    try:
        from vllm.platforms import current_platform
    except ImportError:
        return "vLLM cannot be imported, so it can use none"
    if not current_platform.is_cuda_alike():
        return "none that vLLM can use"
    return "; ".join(
        f"{number}: {current_platform.get_device_name(number)}, "
        f"{current_platform.get_device_total_memory(number) / GIB:.0f} GiB"
        for number in range(current_platform.device_count())
    )


def describe(config: Config, gpus: Sequence[float]) -> str:
    """Return a table: the memory that each vLLM engine gets of each of its GPUs, and what its weights leave of it.
    `gpus`: memory of each GPU in GiB. Raises `ArgumentError`."""
    engines = [engine for engine in config.engines() if engine.engine == "vllm"]
    if not engines:
        return "The command starts no vLLM engine."
    gpu_shares = shares(engines, len(gpus))
    rows = []
    for engine in engines:
        share = gpu_shares[engine.side]
        utilization = share.utilization or engine.arguments.get("gpu_memory_utilization", USABLE)
        memory = utilization * min(gpus[gpu] for gpu in share.gpus)
        weights = None if share.weight_bytes is None else share.weight_bytes / len(share.gpus) / GIB
        sizes = ("?", "?") if weights is None else (f"{weights:.1f}", f"{memory - weights:.1f}")
        numbers = ",".join(map(str, share.gpus))
        rows.append((f"{engine.side} {engine.model}", numbers, f"{utilization:.0%}", f"{memory:.1f}", *sizes))
    table = tabulate(rows, HEADINGS, tablefmt="plain", disable_numparse=True, stralign="right")
    note = "What is left is for images, buffers, CUDA graphs and the KV cache, which vLLM measures."
    if any(share.weight_bytes is None for share in gpu_shares.values()):
        note = "Neither the cache nor the hub has the models, so these shares are guesses (docs/first-run.md)."
    unused = len(gpus) - len({gpu for share in gpu_shares.values() for gpu in share.gpus})
    if unused:
        note += f" GPUs without work: {unused} (docs/scale-out.md)."
    return f"{table}\n{note}"
