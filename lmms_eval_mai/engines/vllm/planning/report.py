"""A plan as a table, and what to know about it, in plain words."""

from collections.abc import Iterator, Sequence

from lmms_eval_mai.engines.vllm.planning.gpus import Gpu
from lmms_eval_mai.engines.vllm.planning.memory import GIB, PINNED_BYTES_PER_WEIGHT_BYTE
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
    replicas = len(request.gpus) // (limits.tensor_parallel * limits.stages)
    divided = f", {replicas} replicas" if replicas > 1 else ""
    divided += f", tensor_parallel_size={limits.tensor_parallel}" if limits.tensor_parallel > 1 else ""
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
        "sum on each GPU": f"{_gib(total)}, {engine.share:.1%} of the GPU",
        "context": f"{limits.context:,} tokens",
        "KV cache holds": f"{engine.kv_tokens:,} tokens, {engine.sequences:.1f} full contexts",
        "largest image": f"{pixels:,} pixels" if pixels else "no limit",
        "calls at the same time": f"up to {limits.max_num_seqs:,}",
    }


def notes(plan: Plan, gpus: Sequence[Gpu], max_open_samples: int | None = None) -> Iterator[str]:
    """Yield what to know about a plan, one sentence or more each. `max_open_samples`: the user's own, None: not
    given."""
    yield from _unchecked(plan, gpus)
    samples = f"{plan.open_samples} samples (max_open_samples)"
    if max_open_samples is not None:
        samples = (
            f"{max_open_samples} samples (max_open_samples, as given; by the plan it would be {plan.open_samples})"
        )
    yield (
        "A run sets these values itself (max_model_len, gpu_memory_utilization, max_num_seqs). It processes up to "
        f"{samples} at the same time."
    )
    if limits := {engine.request.side: engine.max_pixels for engine in plan.engines if engine.max_pixels}:
        pixels = " and ".join(f"{most:,} pixels for the {side} model" for side, most in limits.items())
        if len(set(limits.values())) == 1 and len(limits) == len(plan.engines):
            pixels = f"{next(iter(limits.values())):,} pixels"
        yield (
            f"Images of more than {pixels} are made smaller, because the context is below "
            f"{FULL_IMAGE_CONTEXT:,} tokens. This can change answers, so it is part of the run's fingerprint."
        )
    if plan.turns:
        weights = sum(engine.request.size.weight_bytes for engine in plan.engines)
        turns = "The models take turns on the GPU."
        if not plan.shares_a_gpu():
            turns = "The models take turns, although each has its own GPU: they are faster without sleep=true."
        most = _gib(int(PINNED_BYTES_PER_WEIGHT_BYTE * weights))
        yield f"{turns} While they swap, the weights of both are in the machine's memory. They need up to {most} there."


def _unchecked(plan: Plan, gpus: Sequence[Gpu]) -> Iterator[str]:
    """Yield the engines that the user's own context and memory start without a check, but that do not fit by this
    sum."""
    for engine in plan.engines:
        missing = max(engine.terms.needed() - _taken_bytes(engine, gpus[number]) for number in engine.request.gpus)
        if engine.request.trusted() and missing > 1:  # a share is rounded
            yield (
                f"The {engine.request.side} engine starts without a check, because its context and its memory are "
                f"given. By this plan vLLM refuses it: it needs {_gib(missing)} more for one sequence of "
                f"{engine.limits.context:,} tokens."
            )


def _taken_bytes(engine: EnginePlan, gpu: Gpu) -> int:
    if engine.request.kv_cache_bytes is not None:
        return engine.terms.fixed() + engine.request.kv_cache_bytes
    return int(engine.share * gpu.usable_bytes)


def numbers(gpus: Sequence[int]) -> str:
    """Return the numbers of GPUs: `0`, `1,2`, `2-7`."""
    if len(gpus) > 2 and list(gpus) == list(range(gpus[0], gpus[-1] + 1)):
        return f"{gpus[0]}-{gpus[-1]}"
    return ",".join(map(str, gpus))


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
