"""The GPUs of this machine, or those of a text such as `24,48`, and how the models of a command share them, for
`lmms-eval-mai doctor`. vLLM alone decides whether an engine fits, when it starts."""

from collections.abc import Sequence

from lmms_eval_mai.engines.vllm.gpu_memory import GIB, LEAST_KV_TOKENS, USABLE, kv_cache_bytes, shares
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.run.config import Config

HEADINGS = ("", "GPU", "share", "GiB", "weights GiB", "left GiB", "KV cache GiB")


def parse_gpus(text: str) -> list[float]:
    """Return the memory of each GPU in GiB: `48`, `24,48`. Raises `ArgumentError` for another text."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise ArgumentError(f"--gpus {text} is invalid: give the memory of each GPU in GiB, such as 24 or 48,48.")
    return found


def visible_gpus() -> list[tuple[str, float]]:
    """Return the name and the memory in GiB of the GPUs that vLLM can use; none if vLLM is not installed."""
    try:
        from vllm.platforms import current_platform
    except ImportError:
        return []
    if not current_platform.is_cuda_alike():
        return []
    return [
        (current_platform.get_device_name(number), current_platform.get_device_total_memory(number) / GIB)
        for number in range(current_platform.device_count())
    ]


def describe(config: Config, gpus: Sequence[float], rank: int | None = None) -> list[str]:
    """Return the lines of a table: the memory that each vLLM engine gets of each of its GPUs, and what its weights
    leave of it. `gpus`: memory of each GPU in GiB. `rank`: as for `shares`. Raises `ArgumentError`."""
    engines = [engine for engine in config.engines() if engine.engine == "vllm"]
    if not engines:
        return ["The command starts no vLLM engine."]
    found = shares(engines, len(gpus), rank)
    rows = [HEADINGS]
    for engine in engines:
        share = found[engine.side]
        utilization = share.utilization or engine.arguments.get("gpu_memory_utilization", USABLE)
        memory = utilization * min(gpus[gpu] for gpu in share.gpus)
        weights = None if share.weight_bytes is None else share.weight_bytes / len(share.gpus) / GIB
        sizes = ("?", "?") if weights is None else (f"{weights:.1f}", f"{memory - weights:.1f}")
        numbers = ",".join(map(str, share.gpus))
        total = gpus[share.gpus[0]]
        batch = int(engine.arguments.get("max_num_batched_tokens") or (16_384 if total >= 70 else 8_192))  # vLLM's own
        cache = engine.arguments.get("kv_cache_memory_bytes") or kv_cache_bytes(total * GIB, share, batch)
        shown = "measured" if cache is None else f"{cache / GIB:.1f}"
        rows.append((f"{engine.side} {engine.model}", numbers, f"{utilization:.0%}", f"{memory:.1f}", *sizes, shown))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    note = (
        "What is left is for images, buffers, CUDA graphs and the KV cache. Both engines of one GPU start at the same "
        f"time. If a KV cache of this size holds fewer than {LEAST_KV_TOKENS:,} tokens, vLLM measures, one engine "
        "after the other."
    )
    if any(share.weight_bytes is None for share in found.values()):
        note = (
            "Neither the cache nor the hub has the models, so these shares are guesses. docs/first-run.md has those of "
            "the named pairs."
        )
    return [*table, note]
