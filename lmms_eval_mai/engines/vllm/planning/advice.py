"""What would fit where a plan is not possible, and a plan in one line."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Alternative:
    """A change with which the engines fit."""

    arguments: str
    """The model arguments to add. Empty: arguments must be left out."""
    text: str
    """The change as part of a sentence."""


@dataclass(frozen=True)
class Refusal:
    """Engines that do not fit."""

    text: str
    """The message: what is missing, and what would fit."""
    alternatives: tuple[Alternative, ...]


def refusal(
    gpus: Sequence[Gpu], requests: Sequence[Request], shortfall: Shortfall, others: Mapping[str, ModelSize]
) -> Refusal:
    """Return the message for engines that do not fit, with the shortfall and what would fit.

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
    if (used := gpus[shortfall.gpu].usable_bytes - gpus[shortfall.gpu].free_bytes) > GIB:
        text += f" Other programs use {used / GIB:.1f} GiB of this GPU (`nvidia-smi` lists them): end them if you can."
    found = tuple(alternatives(gpus, requests, others))
    remedy = (
        f"What fits: {'; or '.join(one.text for one in found)}." if found else "Use a larger GPU, or smaller models."
    )
    return Refusal(f"{text} {remedy}", found)


def alternatives(
    gpus: Sequence[Gpu], requests: Sequence[Request], others: Mapping[str, ModelSize]
) -> Iterator[Alternative]:
    """Yield what would fit: single changes, the smallest one first, or two changes together if no single one is
    enough."""
    yield from _without_limits(gpus, requests)
    found = [*_same_models(gpus, requests), *_smaller_models(gpus, requests, others, turns=False)]
    yield from found or _smaller_models(gpus, requests, others, turns=True)


def _without_limits(gpus: Sequence[Gpu], requests: Sequence[Request]) -> Iterator[Alternative]:
    limited = [request for request in requests if request.context is not None or request.share is not None]
    free = [dataclasses.replace(request, context=None, share=None) for request in requests]
    if limited and isinstance(found := plan(gpus, free), Plan):
        names = " and ".join(f"{one.side}_{name}" for one in limited for name in _given(one))
        yield Alternative("", f"leave out {names} (the context is then {found.engines[0].limits.context:,} tokens)")


def _same_models(gpus: Sequence[Gpu], requests: Sequence[Request]) -> Iterator[Alternative]:
    """Yield changes that keep the models: other GPUs, turns, weights in 8 bits."""
    fp8 = None if any(request.quantized for request in requests) else [_fp8(request) for request in requests]
    newer = "for GPUs from the year 2022 on, such as L4 or H100"
    can_take_turns = len(requests) == 2 and bool(set(requests[0].gpus) & set(requests[1].gpus))
    turns_fit = False
    if can_take_turns:
        apart = [
            dataclasses.replace(request, gpus=(index,), tensor_parallel=1, stages=1)
            for index, request in enumerate(requests)
        ]
        if len(gpus) > 1 and isinstance(plan(gpus, apart), Plan):
            separate = "small_devices=0,large_devices=1"
            yield Alternative(separate, f"give each model its own GPU ({separate})")
        if turns_fit := isinstance(plan(gpus, requests, turns=True), Plan):
            yield Alternative("sleep=true", "let the models take turns on the GPU (sleep=true)")
    if fp8 is None:
        return
    if isinstance(plan(gpus, fp8), Plan):
        yield Alternative("quantization=fp8", f"store the weights in 8 bits (quantization=fp8; {newer})")
    elif can_take_turns and not turns_fit and isinstance(plan(gpus, fp8, turns=True), Plan):
        both = "sleep=true,quantization=fp8"
        yield Alternative(both, f"let the models take turns, with their weights in 8 bits ({both}; {newer})")


def _smaller_models(
    gpus: Sequence[Gpu], requests: Sequence[Request], others: Mapping[str, ModelSize], turns: bool
) -> Iterator[Alternative]:
    """Yield the largest smaller models that fit. `turns`: with `sleep=true`."""
    if turns and (len(requests) != 2 or not set(requests[0].gpus) & set(requests[1].gpus)):
        return
    for names in _by_size(requests, others):
        smaller = [
            dataclasses.replace(request, model=name, size=_weights_like(request, others[name]))
            for request, name in zip(requests, names, strict=True)
        ]
        if isinstance(plan(gpus, smaller, turns), Plan):
            new = [f"{one.side}={name}" for one, name in zip(requests, names, strict=True) if one.model != name]
            arguments = ",".join([*new, "sleep=true"] if turns else new)
            what = "smaller models" if len(new) > 1 else "a smaller model"
            yield Alternative(arguments, f"{what}{' that take turns' * turns} ({arguments})")
            return


def _by_size(requests: Sequence[Request], others: Mapping[str, ModelSize]) -> list[tuple[str, ...]]:
    """Return the choices of smaller models from large to small: those of the large model's family, or all if its family
    is unknown."""
    family = _family(requests[-1].model)
    family_is_known = family in map(_family, others)
    allowed = [name for name in others if not family_is_known or _family(name) == family]
    choices: list[tuple[str, ...]] = [(name,) for name in allowed]
    if len(requests) == 2:
        choices = [(small, large) for small in allowed for large in allowed if _is_pair(small, large, others)]

    def size(choice: tuple[str, ...]) -> int:
        return sum(others[name].weight_bytes for name in choice)

    own = sum(request.size.weight_bytes for request in requests)
    return sorted((choice for choice in choices if size(choice) < own), key=size, reverse=True)


def _is_pair(small: str, large: str, sizes: Mapping[str, ModelSize]) -> bool:
    """Return whether two models of one family differ so much in size that a cascade of them makes sense."""
    return _family(small) == _family(large) and sizes[large].weight_bytes > 1.5 * sizes[small].weight_bytes


def _family(model: str) -> str:
    """Return the name of a model up to its number of parameters."""
    return re.sub(r"-?\d+B\b.*", "", model)


def _weights_like(request: Request, size: ModelSize) -> ModelSize:
    """Return the sizes of another model with the request's type of KV cache."""
    return dataclasses.replace(size, kv_number_bytes=request.size.kv_number_bytes)


def _given(request: Request) -> list[str]:
    names = {"max_model_len": request.context, "gpu_memory_utilization": request.share}
    return [name for name, value in names.items() if value is not None]


def _fp8(request: Request) -> Request:
    """Return the request with 8-bit weights. The vision tower and the embeddings, about a fifth, stay in 16 bits."""
    size = dataclasses.replace(request.size, weight_bytes=request.size.weight_bytes * 6 // 10)
    return dataclasses.replace(request, size=size)
