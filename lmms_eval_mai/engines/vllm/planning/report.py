"""A plan as a table, and what to know about it, in plain words."""

from collections.abc import Iterator, Sequence

from lmms_eval_mai.engines.vllm.planning.memory import GIB
from lmms_eval_mai.engines.vllm.planning.plan import FULL_IMAGE_CONTEXT, EnginePlan, Plan

SOURCE = (
    "The memory is computed from the rules of vLLM 0.32 and is exact to about half a GiB. With VLLM_LOGGING_LEVEL=INFO "
    'the lines "Available KV cache memory" and "CUDA graph pool memory" of vLLM\'s log show what it measured.'
)


def table(plan: Plan) -> list[str]:
    """Return the lines of a table: one row per term of the sum and per limit, one column per engine."""
    columns = [_rows(engine) for engine in plan.engines]
    names = list(columns[0])
    rows = [[name, *(column[name] for column in columns)] for name in names]
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _rows(engine: EnginePlan) -> dict[str, str]:
    terms, limits, request = engine.terms, engine.limits, engine.request
    total = terms.fixed() + engine.kv_cache_bytes
    divided = f", divided over {limits.tensor_parallel}" if limits.tensor_parallel > 1 else ""
    pixels = engine.max_pixels or request.max_pixels
    return {
        "": request.side,
        "model": request.model,
        "GPU": numbers(request.gpus) + divided,
        "weights": _gib(terms.weights),
        "vision tower, largest images": _gib(terms.vision_peak),
        "buffers": _gib(terms.buffers),
        "CUDA graphs": _gib(terms.graphs),
        "KV cache": _gib(engine.kv_cache_bytes),
        "sum on each GPU": f"{_gib(total)}, {engine.share:.1%}",
        "context": f"{limits.context:,} tokens",
        "KV cache holds": f"{engine.kv_tokens:,} tokens, {engine.sequences:.1f} full contexts",
        "largest image": f"{pixels:,} pixels" if pixels else "no limit",
        "calls at the same time": f"up to {limits.max_num_seqs:,}",
    }


def notes(plan: Plan) -> Iterator[str]:
    """Yield what to know about a plan, one sentence or two each."""
    yield f"A run chooses these values itself. It keeps {plan.open_samples} samples open (max_open_samples)."
    if limited := [engine for engine in plan.engines if engine.max_pixels]:
        yield (
            f"Images of more than {limited[0].max_pixels:,} pixels are made smaller, because the context is below "
            f"{FULL_IMAGE_CONTEXT:,} tokens. This can change answers, so it is part of the run's fingerprint."
        )
    if plan.turns:
        weights = sum(engine.request.size.weight_bytes for engine in plan.engines)
        turns = "The models take turns on the GPU."
        if not plan.shares_a_gpu():
            turns = "The models take turns, although each has its own GPU: they are faster without sleep=true."
        yield (f"{turns} The one that waits is in the machine's memory, which needs about {_gib(weights)} for both.")


def numbers(gpus: Sequence[int]) -> str:
    """Return the numbers of GPUs: `0`, `1,2`, `2-7`."""
    if len(gpus) > 2 and list(gpus) == list(range(gpus[0], gpus[-1] + 1)):
        return f"{gpus[0]}-{gpus[-1]}"
    return ",".join(map(str, gpus))


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
