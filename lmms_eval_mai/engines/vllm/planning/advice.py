"""Names changes with which engines would fit, and describes an engine of a plan in one line."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.engines.vllm.planning.gpus import Gpu
from lmms_eval_mai.engines.vllm.planning.layout import Place
from lmms_eval_mai.engines.vllm.planning.memory import GIB
from lmms_eval_mai.engines.vllm.planning.models import FP8_SHARE, ModelSize
from lmms_eval_mai.engines.vllm.planning.plan import EnginePlan, Plan, Request, Shortfall, plan

LIMITS = {
    "gpu_memory_utilization": "share",
    "kv_cache_memory_bytes": "kv_cache_bytes",
    "max_model_len": "context",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "mm_processor_kwargs": "max_pixels",
}
"""Arguments that may be left out -> the fields of `Request`."""
MEMORY, OTHERS = ("gpu_memory_utilization", "kv_cache_memory_bytes"), tuple(LIMITS)[3:]


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


@dataclass(frozen=True)
class Case:
    """Engines that do not fit, and what may be changed."""

    gpus: Sequence[Gpu]
    requests: Sequence[Request]
    turns: bool = False
    """Whether the command has `sleep=true`."""
    others: Mapping[str, ModelSize] = dataclasses.field(default_factory=dict)
    """Model name -> its sizes, smaller models that may be recommended."""
    places: Callable[[bool], Iterable[Sequence[Place]]] = lambda turns: ()
    """Returns where else the engines may run. Its argument: whether they take turns."""
    may_name_gpus: bool = True
    """Whether the user can give each model one GPU. Ranks of a launcher cannot."""

    def fit(self, requests: Sequence[Request], turns: bool) -> Plan | None:
        """Return the plan of changed engines at their places, else at other places. None: they do not fit."""
        if turns and len(requests) < 2:
            return None
        if isinstance(found := plan(self.gpus, requests, turns), Plan):
            return found
        for places in self.places(turns):
            moved = [
                dataclasses.replace(request, gpus=place.gpus, tensor_parallel=place.tensor_parallel)
                for request, place in zip(requests, places, strict=True)
            ]
            if isinstance(found := plan(self.gpus, moved, turns), Plan):
                return found
        return None


def refusal(case: Case, shortfall: Shortfall) -> Refusal:
    """Return the message for engines that do not fit, with the shortfall and what would fit."""
    gpu = case.gpus[shortfall.gpu]
    on_gpu = [
        one for one in case.requests if one.side == shortfall.side or (not shortfall.side and shortfall.gpu in one.gpus)
    ]
    models = " and ".join(f"{one.model} ({one.size.weight_bytes / GIB:.1f} GiB)" for one in on_gpu)
    do = "do not fit" if len(on_gpu) > 1 else "does not fit"
    text = (
        f"{models} {do} GPU {shortfall.gpu} ({gpu.name}): with a context of {shortfall.context:,} "
        f"tokens {shortfall.missing_bytes / GIB:.1f} GiB are missing; {shortfall.available_bytes / GIB:.1f} GiB are "
        "available."
    )
    if shortfall.side is not None:
        text += " This is what its gpu_memory_utilization or kv_cache_memory_bytes gives it."
    elif (used := gpu.usable_bytes - gpu.free_bytes) > GIB:
        text += f" Other programs use {used / GIB:.1f} GiB of this GPU (`nvidia-smi` lists them): end them if you can."
    found = tuple(alternatives(case))
    remedy = "Use a larger GPU, or smaller models."
    if found:
        remedy = f"Change --model_args in one of these ways: {'; or '.join(one.text for one in found)}."
    return Refusal(f"{text} {remedy}", found)


def alternatives(case: Case) -> Iterator[Alternative]:
    """Yield what would fit: single changes, the smallest one first, or two changes together if no single one is
    enough."""
    yield from (found := [*_without_limits(case), *_changes(case)])
    if not found and (given := list(_given(case.requests, LIMITS))):
        without: dict[str, Any] = dict.fromkeys(LIMITS.values())
        free = [dataclasses.replace(one, **without) for one in case.requests]
        for one in _changes(dataclasses.replace(case, requests=free)):
            yield Alternative(one.arguments, f"leave out {' and '.join(given)}, and {one.text}")


def _changes(case: Case) -> Iterator[Alternative]:
    """Yield changes that keep the user's limits."""
    found = [*_same_models(case), *_smaller_models(case, case.turns)]
    yield from found or ([] if case.turns else _smaller_models(case, turns=True))


def _without_limits(case: Case) -> Iterator[Alternative]:
    """Yield the smallest group of the user's limits without which the engines fit."""
    for names in (MEMORY, ("max_model_len",), OTHERS, tuple(LIMITS)):
        given = list(_given(case.requests, names))
        without: dict[str, Any] = {LIMITS[name]: None for name in names}
        free = [dataclasses.replace(one, **without) for one in case.requests]
        if given and (found := case.fit(free, case.turns)) is not None:
            context = found.engines[0].limits.context
            yield Alternative("", f"leave out {' and '.join(given)} (the context is then {context:,} tokens)")
            return


def _same_models(case: Case) -> Iterator[Alternative]:
    """Yield changes that keep the models: other GPUs, turns, weights in 8 bits."""
    if case.turns and case.fit(case.requests, turns=False) is not None:
        yield Alternative("", "leave out sleep=true")
    if case.may_name_gpus and len(case.gpus) > 1 and _share_a_gpu(case.requests):
        apart = [
            dataclasses.replace(request, gpus=(index,), tensor_parallel=1, stages=1)
            for index, request in enumerate(case.requests)
        ]
        if isinstance(plan(case.gpus, apart), Plan):
            separate = "small_devices=0,large_devices=1"
            yield Alternative(separate, f"give each model its own GPU ({separate})")
    if turns_fit := not case.turns and case.fit(case.requests, turns=True) is not None:
        yield Alternative("sleep=true", "let the models take turns on the GPU (sleep=true)")
    if any(request.quantized for request in case.requests):
        return
    fp8 = [_fp8(request) for request in case.requests]
    if case.fit(fp8, case.turns) is not None:
        yield Alternative("quantization=fp8", "store the weights in 8 bits (quantization=fp8)")
    elif not case.turns and not turns_fit and case.fit(fp8, turns=True) is not None:
        both = "sleep=true,quantization=fp8"
        yield Alternative(both, f"let the models take turns, and store their weights in 8 bits ({both})")


def _smaller_models(case: Case, turns: bool) -> Iterator[Alternative]:
    """Yield the largest smaller models that fit. `turns`: with `sleep=true`."""
    for names in _by_size(case):
        smaller = [
            dataclasses.replace(request, model=name, size=_weights_like(request, case.others[name]))
            for request, name in zip(case.requests, names, strict=True)
        ]
        if case.fit(smaller, turns) is not None:
            new = [f"{one.side}={name}" for one, name in zip(case.requests, names, strict=True) if one.model != name]
            sleep = turns and not case.turns
            arguments = ",".join([*new, "sleep=true"] if sleep else new)
            what = "use smaller models" if len(new) > 1 else "use a smaller model"
            yield Alternative(arguments, f"{what}{', and let the models take turns' * sleep} ({arguments})")
            return


def _by_size(case: Case) -> list[tuple[str, ...]]:
    """Return the choices of smaller models from large to small: those of the large model's family, or all if its family
    is unknown."""
    requests, others = case.requests, case.others
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


def _share_a_gpu(requests: Sequence[Request]) -> bool:
    return len(requests) == 2 and bool(set(requests[0].gpus) & set(requests[1].gpus))


def _weights_like(request: Request, size: ModelSize) -> ModelSize:
    """Return the sizes of another model with the request's type of KV cache."""
    return dataclasses.replace(size, kv_number_bytes=request.size.kv_number_bytes)


def _given(requests: Sequence[Request], names: Iterable[str]) -> Iterator[str]:
    """Yield those of these arguments that the user gave: without a side if all engines have the same value."""
    for name in names:
        values = [getattr(request, LIMITS[name]) for request in requests]
        if values[0] is not None and values.count(values[0]) == len(values):
            yield name
            continue
        yield from (f"{one.side}_{name}" for one, value in zip(requests, values, strict=True) if value is not None)


def _fp8(request: Request) -> Request:
    """Return the request with weights in 8 bits."""
    size = dataclasses.replace(request.size, weight_bytes=int(request.size.weight_bytes * FP8_SHARE))
    return dataclasses.replace(request, size=size)
