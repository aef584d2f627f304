"""Reads the user's arguments that decide the plan of the GPU memory, and refuses values that no plan can have."""

from collections.abc import Mapping
from typing import Any

from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.engines.arguments import positive_int
from lmms_eval_mai.engines.vllm.placement import Launcher, given_devices, gpu_of_rank
from lmms_eval_mai.engines.vllm.planning.layout import TENSOR_PARALLEL, Place, Wish
from lmms_eval_mai.engines.vllm.planning.models import ModelSize
from lmms_eval_mai.engines.vllm.planning.plan import Request
from lmms_eval_mai.errors import ArgumentError

COPIES = ("pipeline_parallel_size", "data_parallel_size", "prefill_context_parallel_size")
DIVISIONS = ("tensor_parallel_size", *COPIES)
"""Arguments that divide an engine, or multiply it, over several GPUs."""
AUTOMATIC_CONTEXTS = (-1, "auto")
"""Values of `max_model_len` with which vLLM chooses the context itself."""


def wish(config: EngineConfig, size: ModelSize | None, gpu_count: int, launcher: Launcher) -> Wish:
    """Return the GPUs and the division of an engine that the user gave. Raises `ArgumentError`."""
    given = config.arguments
    devices = given_devices(config.side, given.get("devices"), gpu_count, launcher)
    if devices is None and (own := gpu_of_rank(gpu_count, launcher)) is not None:
        devices = (own,)
    copies = 1
    for name in COPIES:
        copies *= whole_number(given, name) or 1
    found = Wish(devices, whole_number(given, "tensor_parallel_size"), copies, None if size is None else size.heads)
    _check_division(config, found)
    return found


def _check_division(config: EngineConfig, wish: Wish) -> None:
    """Refuse a division of an engine that its GPUs or its attention heads do not allow. Raises `ArgumentError`."""
    side, devices = config.side, wish.devices
    needed = (wish.tensor_parallel or 1) * wish.copies
    if devices is not None and needed > len(devices):
        given = ", ".join(f"{name}={config.arguments[name]}" for name in DIVISIONS if config.arguments.get(name))
        has = "each rank has 1" if config.arguments.get("devices") is None else f"{side}_devices names {len(devices)}"
        raise ArgumentError(f"The {side} engine needs {needed} GPUs ({given}), but {has}.")
    parts = wish.tensor_parallel or (len(devices) // wish.copies if devices else 1)
    if wish.heads is not None and wish.heads % parts:
        cause = (
            f"tensor_parallel_size={parts}" if wish.tensor_parallel else f"{side}_devices with {parts} GPUs per copy"
        )
        fitting = ", ".join(str(size) for size in TENSOR_PARALLEL if wish.heads % size == 0)
        raise ArgumentError(
            f"{cause} does not divide the {wish.heads} attention heads of {config.model}. These numbers of GPUs do: "
            f"{fitting}."
        )


def request(config: EngineConfig, size: ModelSize, place: Place) -> Request:
    """Return the engine as the user wants it, at this place. Raises `ArgumentError`."""
    given = config.arguments
    automatic = given.get("max_model_len") in AUTOMATIC_CONTEXTS
    return Request(
        side=config.side,
        model=config.model,
        size=size,
        gpus=place.gpus,
        tensor_parallel=place.tensor_parallel,
        stages=whole_number(given, "pipeline_parallel_size") or 1,
        context=None if automatic else whole_number(given, "max_model_len"),
        share=share_of_gpu(given),
        # vLLM takes 0 as not given.
        kv_cache_bytes=whole_number(given, "kv_cache_memory_bytes") if given.get("kv_cache_memory_bytes") else None,
        max_num_seqs=whole_number(given, "max_num_seqs"),
        max_num_batched_tokens=whole_number(given, "max_num_batched_tokens"),
        max_pixels=_max_pixels(given.get("mm_processor_kwargs")),
        enforce_eager=given.get("enforce_eager") in (True, "True", "true"),
        quantized=size.quantized or given.get("quantization") is not None,
    )


def whole_number(given: Mapping[str, Any], name: str) -> int | None:
    """Return an argument as a whole number of at least 1. None: it is not given. Raises `ArgumentError`."""
    value = given.get(name)
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return None if value is None else positive_int(name, value)


def share_of_gpu(given: Mapping[str, Any]) -> float | None:
    """Return the user's share of a GPU's memory. None: it is not given. Raises `ArgumentError`."""
    name = "gpu_memory_utilization"
    value = given.get(name)
    if value is None:
        return None
    try:
        share = 0.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        share = 0.0
    if not 0 < share <= 1:
        raise ArgumentError(f"{name}={value} is invalid: expected a number above 0 and at most 1, such as 0.4.")
    return share


def _max_pixels(processor_arguments: Any) -> int | None:
    """Return the user's limit of pixels. Newer processors call it `size.longest_edge`."""
    if not isinstance(processor_arguments, Mapping):
        return None
    size = processor_arguments.get("size")
    longest = size.get("longest_edge") if isinstance(size, Mapping) else None
    name = "longest_edge" if processor_arguments.get("max_pixels") is None else "max_pixels"
    return whole_number({**processor_arguments, "longest_edge": longest}, name)
