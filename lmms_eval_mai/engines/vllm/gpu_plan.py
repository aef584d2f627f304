"""Plans the engines of a run on the GPUs of a machine: reads the user's arguments and the checkpoints, and chooses the
best layout of `planning/`."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loguru import logger

from lmms_eval_mai.contract import EngineConfig, Side
from lmms_eval_mai.engines.vllm.model_sizes import size_of, why_unknown
from lmms_eval_mai.engines.vllm.placement import Launcher
from lmms_eval_mai.engines.vllm.plan_arguments import DIVISIONS, request, share_of_gpu, wish
from lmms_eval_mai.engines.vllm.planning.advice import Case, Refusal, refusal
from lmms_eval_mai.engines.vllm.planning.gpus import Gpu
from lmms_eval_mai.engines.vllm.planning.known_models import known_models
from lmms_eval_mai.engines.vllm.planning.layout import Place, layouts
from lmms_eval_mai.engines.vllm.planning.models import ModelSize
from lmms_eval_mai.engines.vllm.planning.plan import (
    FULL_IMAGE_CONTEXT,
    GPU_SHARE,
    EnginePlan,
    Plan,
    Request,
    Shortfall,
    budget_bytes,
    plan,
)
from lmms_eval_mai.errors import ArgumentError


@dataclass(frozen=True)
class OnGpus:
    """One engine on its GPUs."""

    place: Place
    share: float
    """Its share of each of its GPUs, vLLM's `gpu_memory_utilization`."""
    plan: EnginePlan | None
    """None: the size of a model is unknown, so only places and shares are decided."""


def on_gpus(
    configs: Sequence[EngineConfig], gpus: Sequence[Gpu], launcher: Launcher, turns: bool
) -> dict[Side, OnGpus]:
    """Return where each engine runs, and with how much memory. Raises `ArgumentError` if the engines do not fit."""
    # A GPU whose memory cannot be read has 0 bytes. The user then gives the memory of each engine.
    readable = all(gpu.total_bytes for gpu in gpus)
    found = pair_plan(configs, gpus, launcher, turns) if readable else None
    if found is not None:
        return {
            one.request.side: OnGpus(Place(one.request.gpus, one.limits.tensor_parallel), one.share, one)
            for one in found.engines
        }
    if readable and (unknown := unknown_sizes(configs)):
        shares = " and ".join(f"{config.side}_gpu_memory_utilization" for config in configs)
        _warn_once(
            f"{unknown} So the memory of the GPUs is shared equally. If an engine does not start, set {shares}, and "
            "max_model_len."
        )
    places = next(_places(configs, [None] * len(configs), len(gpus), launcher, turns), None)
    if places is None:
        raise too_few_gpus(len(gpus))
    equal = _equal_shares(configs, places, gpus, turns)
    return {
        config.side: OnGpus(place, share, None) for config, place, share in zip(configs, places, equal, strict=True)
    }


def _equal_shares(
    configs: Sequence[EngineConfig], places: Sequence[Place], gpus: Sequence[Gpu], turns: bool
) -> Iterator[float]:
    """Yield the share of each engine if the size of a model or the memory of a GPU is unknown: the user's own, else an
    equal part of the rest. Raises `ArgumentError` if the user's share of one engine leaves nothing to the other."""
    given = [share_of_gpu(config.arguments) for config in configs]
    for config, place, own in zip(configs, places, given, strict=True):
        if own is not None:
            yield own
            continue
        on_gpus = [share for share, other in zip(given, places, strict=True) if set(other.gpus) & set(place.gpus)]
        awake = [own] if turns else on_gpus
        left = min(_budget_share(gpus[number], len(on_gpus), turns) for number in place.gpus)
        left -= sum(share for share in awake if share is not None)
        if left <= 0:
            raise ArgumentError(
                f"There is no GPU memory for {config.side}={config.model}. Lower gpu_memory_utilization of the other "
                "engine, or end other programs that use the GPU."
            )
        yield left / awake.count(None)


def _budget_share(gpu: Gpu, engines: int, turns: bool) -> float:
    """Return the share of a GPU that all engines on it may take together."""
    return budget_bytes(gpu, engines, turns) / gpu.usable_bytes if gpu.total_bytes else GPU_SHARE


def unknown_sizes(configs: Sequence[EngineConfig]) -> str:
    """Return a sentence about the models whose size is unknown, one for each reason. Empty: all sizes are known."""
    models: dict[str, list[str]] = {}
    for config in configs:
        if size_of(config) is None:
            models.setdefault(why_unknown(config), []).append(f"{config.side}={config.model}")
    return " ".join(f"The size of {' and '.join(names)} is unknown: {reason}." for reason, names in models.items())


def too_few_gpus(gpu_count: int) -> ArgumentError:
    return ArgumentError(
        f"The engines need more GPUs than the {gpu_count} of this machine: lower tensor_parallel_size, "
        "pipeline_parallel_size or data_parallel_size."
    )


def pair_plan(configs: Sequence[EngineConfig], gpus: Sequence[Gpu], launcher: Launcher, turns: bool) -> Plan | None:
    """Return the plan of the engines on these GPUs, the small engine first.

    None: the size of a model is unknown, so nothing can be planned. Raises `ArgumentError` if the engines do not fit;
    the message names what is missing and what would fit.
    """
    found = plan_or_refusal(configs, gpus, launcher, turns)
    if isinstance(found, Refusal):
        raise ArgumentError(found.text)
    return found


def plan_or_refusal(
    configs: Sequence[EngineConfig], gpus: Sequence[Gpu], launcher: Launcher, turns: bool
) -> Plan | Refusal | None:
    """Return the plan as `pair_plan` does, or why the engines do not fit and what would fit. Raises `ArgumentError` if
    there are too few GPUs."""
    sizes = [size_of(config) for config in configs]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    best: Plan | None = None
    worst: tuple[list[Request], Shortfall] | None = None
    calls = min((config.max_calls for config in configs if config.max_calls is not None), default=None)
    for places in _places(configs, known, len(gpus), launcher, turns):
        requests = [request(*one) for one in zip(configs, known, places, strict=True)]
        found = plan(gpus, requests, turns, calls)
        if isinstance(found, Shortfall):
            worst = worst or (requests, found)
        elif best is None or found.context() > best.context():
            best = found
        if best is not None and best.context() >= FULL_IMAGE_CONTEXT:
            break
    if best is not None:
        return best
    if worst is None:
        raise too_few_gpus(len(gpus))
    requests, shortfall = worst
    divided = any(config.arguments.get(name) for config in configs for name in DIVISIONS)
    case = Case(
        gpus,
        requests,
        turns,
        known_models(),
        places=lambda turns: _places(configs, known, len(gpus), launcher, turns),
        may_name_gpus=launcher.rank is None and not divided,
    )
    return refusal(case, shortfall)


@functools.cache  # both engines, and every restart, are planned
def _warn_once(text: str) -> None:
    logger.warning(f"mai_cascade: {text}")


def _places(
    configs: Sequence[EngineConfig],
    sizes: Sequence[ModelSize | None],
    gpu_count: int,
    launcher: Launcher,
    turns: bool,
) -> Iterator[tuple[Place, ...]]:
    wishes = [wish(config, size, gpu_count, launcher) for config, size in zip(configs, sizes, strict=True)]
    return layouts(wishes, gpu_count, turns)
