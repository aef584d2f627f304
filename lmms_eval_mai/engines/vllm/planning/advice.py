"""Plans as text for people: the table of a plan, and what would fit where a plan is not possible."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from lmms_eval_mai.engines.vllm.planning.gpus import Gpu
from lmms_eval_mai.engines.vllm.planning.memory import GIB
from lmms_eval_mai.engines.vllm.planning.models import ModelSize
from lmms_eval_mai.engines.vllm.planning.plan import EnginePlan, Plan, Request, Shortfall, plan


def engine_line(engine: EnginePlan) -> str:
    """Return one line about an engine: its GPUs, its share, and every term of the sum."""
    terms, limits = engine.terms, engine.limits
    gpus = ",".join(map(str, engine.request.gpus))
    parts = {
        "weights": terms.weights,
        "vision peak": terms.vision_peak,
        "buffers": terms.buffers,
        "CUDA graphs": terms.graphs,
        "KV cache": engine.kv_cache_bytes,
    }
    total = sum(parts.values()) / GIB
    sum_ = " + ".join(f"{name} {value / GIB:.1f}" for name, value in parts.items())
    pixels = f", images of at most {engine.max_pixels:,} pixels" if engine.max_pixels else ""
    return (
        f"GPU {gpus}: {total:.1f} GiB ({engine.share:.1%}) = {sum_}; context {limits.context:,} tokens{pixels}; "
        f"the KV cache holds {engine.kv_tokens:,} tokens, {engine.sequences:.1f} sequences of full length; up to "
        f"{limits.max_num_seqs} calls at once"
    )


def refusal(
    gpus: Sequence[Gpu], requests: Sequence[Request], shortfall: Shortfall, others: Mapping[str, ModelSize]
) -> str:
    """Return the sentence for engines that do not fit, with the shortfall and what would fit.

    `others`: model name -> its sizes, smaller models that may be recommended.
    """
    on_gpu = [request for request in requests if shortfall.gpu in request.gpus]
    models = " and ".join(f"{one.model} ({one.size.weight_bytes / GIB:.1f} GiB)" for one in on_gpu)
    do = "do not fit" if len(on_gpu) > 1 else "does not fit"
    text = (
        f"{models} {do} GPU {shortfall.gpu} ({gpus[shortfall.gpu].name}): with a context of {shortfall.context:,} "
        f"tokens {shortfall.missing_bytes / GIB:.1f} GiB are missing; {shortfall.available_bytes / GIB:.1f} GiB are "
        "available."
    )
    found = list(alternatives(gpus, requests, others))
    if not found:
        return f"{text} Use a larger GPU, or smaller models."
    return f"{text} What fits: {'; or '.join(found)}."


def alternatives(gpus: Sequence[Gpu], requests: Sequence[Request], others: Mapping[str, ModelSize]) -> Iterator[str]:
    """Return what would fit, the smallest change first."""
    limited = [request for request in requests if request.context is not None or request.share is not None]
    if limited:
        free = [dataclasses.replace(request, context=None, share=None) for request in requests]
        if isinstance(found := plan(gpus, free), Plan):
            names = " and ".join(f"{one.side}_{name}" for one in limited for name in _given(one))
            yield f"leave out {names} (the context is then {found.engines[0].limits.context:,} tokens)"
    if len(requests) == 2 and set(requests[0].gpus) & set(requests[1].gpus):
        apart = [
            dataclasses.replace(request, gpus=(index,), tensor_parallel=1) for index, request in enumerate(requests)
        ]
        if len(gpus) > 1 and isinstance(plan(gpus, apart), Plan):
            yield "give each model its own GPU (small_devices=0,large_devices=1)"
        if isinstance(plan(gpus, requests, turns=True), Plan):
            yield "let the models take turns on the GPU (sleep=true)"
    quantized = any(request.quantized for request in requests)
    if not quantized and isinstance(plan(gpus, [_fp8(request) for request in requests]), Plan):
        yield "store the weights in 8 bits (quantization=fp8; for GPUs from the year 2022 on, such as L4 or H100)"
    for name, size in sorted(others.items(), key=lambda item: -item[1].weight_bytes):
        large = requests[-1]
        if size.weight_bytes < large.size.weight_bytes and name != requests[0].model:
            smaller = [*requests[:-1], dataclasses.replace(large, model=name, size=size)]
            if isinstance(plan(gpus, smaller), Plan):
                yield f"a smaller model ({large.side}={name})"
                return


def _given(request: Request) -> list[str]:
    names = {"max_model_len": request.context, "gpu_memory_utilization": request.share}
    return [name for name, value in names.items() if value is not None]


def _fp8(request: Request) -> Request:
    """Return the request with 8-bit weights. The vision tower and the embeddings, about a fifth, stay in 16 bits."""
    size = dataclasses.replace(request.size, weight_bytes=request.size.weight_bytes * 6 // 10)
    return dataclasses.replace(request, size=size)
