"""Builds the configuration of one vLLM engine from its arguments, and checks it."""

import dataclasses
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loguru import logger

from lmms_eval_mai.contract import SIDES, EngineConfig, Side
from lmms_eval_mai.engines.checkpoints import check_checkpoint, check_weights, text_only_error
from lmms_eval_mai.engines.vllm import environment, gpu_memory, internals, machine_checks
from lmms_eval_mai.engines.vllm.environment import Launcher, Platform, worker_count
from lmms_eval_mai.engines.vllm.errors import invalid_argument, start_error
from lmms_eval_mai.engines.vllm.gpu_memory import GIB, Share
from lmms_eval_mai.errors import ArgumentError, MaiError

OWN_ARGUMENTS = frozenset({"devices"})
"""Arguments of this engine that vLLM does not have."""

PERFORMANCE_ARGUMENTS = {
    *("devices", "device_ids", "gpu_memory_utilization", "kv_cache_memory_bytes", "cpu_offload_gb", "max_num_seqs"),
    *("max_num_batched_tokens", "block_size", "enforce_eager", "disable_log_stats", "load_format", "download_dir"),
    *("mm_processor_cache_gb", "enable_prefix_caching", "distributed_executor_backend"),
    "per_request_spec_decode_metrics",
}
"""Arguments that change the speed, the device or the memory of an engine, but no answer. A run may be resumed with
other values."""

MAX_CPU_CONTEXT = 8192
"""Longest context, in tokens, that is chosen for the user on a CPU."""


@dataclass(frozen=True)
class Configuration:
    """Everything that an engine needs to start."""

    vllm_config: Any
    environment: dict[str, str]
    """Environment variables for the engine's processes."""
    description: str
    starts_alone: bool
    image_cache_gib: float
    """Size of the renderer's cache of prepared images. The renderer may serve two engines, so it keeps the images, and
    the engines keep none."""
    automatic_context: bool
    """Whether vLLM chooses the context while it starts."""


def argument_names() -> frozenset[str] | None:
    """Return the names of the engine's arguments. None: vLLM is not installed, so they are unknown."""
    try:
        environment.detect_platform()
        from vllm.engine.arg_utils import AsyncEngineArgs
    except (ImportError, MaiError):
        return None
    return frozenset(field.name for field in dataclasses.fields(AsyncEngineArgs)) - {"model"} | OWN_ARGUMENTS


def configure(config: EngineConfig, other: EngineConfig | None) -> Configuration:
    """Return the configuration. `other`: the second engine on this machine.

    Raises `ArgumentError`, `EngineUnavailable` or `EngineStartError`.
    """
    platform = environment.detect_platform()
    try:
        return _configure(config, other, platform)
    except MaiError:
        raise
    except Exception as error:
        raise invalid_argument(config, error) or start_error(config, error) from error


def _configure(config: EngineConfig, other: EngineConfig | None, platform: Platform) -> Configuration:
    from vllm.usage.usage_lib import UsageContext

    configs = sorted((one for one in (config, other) if one is not None), key=lambda one: SIDES.index(one.side))
    shares = _shares(tuple(configs), platform)
    share = shares.get(config.side)
    check_checkpoint(config.side, config.model)
    if config.arguments.get("load_format") != "dummy":
        check_weights(config.side, config.model, config.arguments.get("revision"))
    machine_checks.check_gpus({side: one.gpus for side, one in shares.items()})
    machine_checks.check_shared_memory(worker_count(config))
    variables = environment.variables(configs, platform)
    with environment.engine_environment(variables):
        engine_args = _engine_args(config, share)
        model_config = engine_args.create_model_config()
        if not model_config.is_multimodal_model:
            raise text_only_error(config.side, config.model, model_config.architectures)
        _set_defaults(engine_args, config, model_config, platform)
        image_cache_gib = engine_args.mm_processor_cache_gb
        engine_args.mm_processor_cache_gb = 0  # the renderer keeps the images
        automatic = engine_args.max_model_len == gpu_memory.AUTOMATIC
        # Without a usage context vLLM takes the smallest batch limits, those of a bare engine.
        vllm_config = engine_args.create_engine_config(UsageContext.LLM_CLASS)
        if environment.PRELOADED in os.environ:  # on a CPU vLLM has added its own libraries
            variables[environment.PRELOADED] = os.environ[environment.PRELOADED]
    return Configuration(
        vllm_config=vllm_config,
        environment=variables,
        description=_description(engine_args, str(model_config.dtype), share),
        starts_alone=platform == "cuda" and _measures_a_shared_gpu(configs, shares),
        image_cache_gib=image_cache_gib,
        automatic_context=automatic,
    )


def _shares(configs: tuple[EngineConfig, ...], platform: Platform) -> Mapping[Side, Share]:
    """Return the GPUs and the memory of each engine; empty on a CPU. Raises `ArgumentError`."""
    from vllm.platforms import current_platform

    if platform == "cpu":
        for config in configs:
            gpu_memory.given_devices(config, 0, Launcher())
        return {}
    count: int = current_platform.device_count()
    if not count:
        raise ArgumentError(
            "engine=vllm is built for GPUs, and this process can see none: check CUDA_VISIBLE_DEVICES and `nvidia-smi`."
        )
    totals = [machine_checks.memory_bytes(number) for number in range(count)]
    shares = gpu_memory.shares(configs, totals, Launcher.from_environment())
    for config in configs:
        if shares[config.side].verdict == "does not fit":
            _warn_once(
                f"By an estimate, {config.side}={config.model} does not fit. If it does not start: "
                f"{gpu_memory.ways_out(configs)}"
            )
    return shares


@functools.cache  # both engines, and every restart, are configured
def _warn_once(text: str) -> None:
    logger.warning(f"mai_cascade: {text}")


def _measures_a_shared_gpu(configs: list[EngineConfig], shares: Mapping[Side, Share]) -> bool:
    """Return whether the engines use the same GPU and one of them measures its free memory while it starts (vLLM issue
    #55827). The other one must not allocate memory then. With a given size of the KV cache an engine does not
    measure."""
    if len(configs) < 2 or not set(shares["small"].gpus) & set(shares["large"].gpus):
        return False
    return not all(config.arguments.get("kv_cache_memory_bytes") for config in configs)


def _engine_args(config: EngineConfig, share: Share | None) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs

    types = {field.name: str(field.type) for field in dataclasses.fields(AsyncEngineArgs)}
    arguments: dict[str, Any] = {}
    for name, value in config.arguments.items():
        if name in OWN_ARGUMENTS:
            continue
        # lmms-eval reads -1 and 1e4 as floats.
        whole = isinstance(value, float) and value.is_integer() and "float" not in types.get(name, "")
        arguments[name] = int(value) if whole else value
    if arguments.get("max_model_len") == "auto":
        arguments["max_model_len"] = gpu_memory.AUTOMATIC  # vLLM reads "auto" only on its own command line
    if share is not None:
        arguments["device_ids"] = list(share.gpus)
        if share.utilization is not None:
            arguments.setdefault("gpu_memory_utilization", share.utilization)
        if share.context is not None:
            arguments.setdefault("max_model_len", share.context)
        if config.arguments.get("devices") is not None:  # the named GPUs hold one model together
            copies = worker_count(config) // int(arguments.get("tensor_parallel_size") or 1)
            arguments.setdefault("tensor_parallel_size", max(1, len(share.gpus) // copies))
    if not environment.shows_log():
        arguments.setdefault("use_tqdm_on_load", False)
    return AsyncEngineArgs(model=config.model, **arguments)


def _set_defaults(engine_args: Any, config: EngineConfig, model_config: Any, platform: Platform) -> None:
    """Set arguments that the user left out and whose default in vLLM needs too much memory or time if two engines share
    one machine."""
    given = config.arguments
    longest = MAX_CPU_CONTEXT if platform == "cpu" else gpu_memory.MAX_CONTEXT
    if engine_args.max_model_len is None:
        engine_args.max_model_len = min(model_config.max_model_len, longest)
    if engine_args.speculative_config is not None and "per_request_spec_decode_metrics" not in given:
        engine_args.per_request_spec_decode_metrics = "summary"  # for the drafted and accepted tokens of a call
    if platform != "cpu":
        return
    if worker_count(config) == 1 and "distributed_executor_backend" not in given and not environment.binds_threads():
        engine_args.distributed_executor_backend = internals.ONE_PROCESS
    if "enforce_eager" not in given:
        engine_args.enforce_eager = True  # compilation takes minutes and needs a C++ compiler
    if "block_size" not in given:
        engine_args.block_size = 32  # a short prompt never fills a block of 128, the default, so it is never cached
    if "kv_cache_memory_bytes" not in given:
        engine_args.kv_cache_memory_bytes = _cpu_kv_cache_bytes(model_config, engine_args.max_model_len)


def _cpu_kv_cache_bytes(model_config: Any, max_model_len: int) -> int:
    """Return the size of a KV cache for four sequences of full length, at least 64 MiB. vLLM's default is 92% of the
    memory of a NUMA node."""
    heads, size = model_config.get_total_num_kv_heads(), model_config.get_head_size()
    layers = model_config.hf_text_config.num_hidden_layers
    return max(64 << 20, 4 * gpu_memory.kv_bytes(layers, heads, size) * max_model_len)


def _description(engine_args: Any, dtype: str, share: Share | None) -> str:
    place = "on the CPU"
    if share is not None:
        gpus = ",".join(map(str, share.gpus))
        place = f"{engine_args.gpu_memory_utilization:.0%} of the memory of GPU {gpus}"
    cache = engine_args.kv_cache_memory_bytes
    kv_cache = f", a KV cache of {cache / GIB:.2f} GiB" if cache else ""
    automatic = engine_args.max_model_len == gpu_memory.AUTOMATIC
    context = "a context that vLLM chooses" if automatic else f"context {engine_args.max_model_len} tokens"
    return f"{place}, {dtype.removeprefix('torch.')}{kv_cache}, {context}"
