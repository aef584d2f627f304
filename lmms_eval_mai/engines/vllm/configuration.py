"""Builds the configuration of one vLLM engine from its arguments, and checks it."""

from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.engines.base import EngineConfig
from lmms_eval_mai.engines.vllm import arguments as vllm_arguments
from lmms_eval_mai.engines.vllm import logs, memory, placement
from lmms_eval_mai.engines.vllm.errors import start_error
from lmms_eval_mai.engines.vllm.placement import ChildEnvironment, Launcher, Platform
from lmms_eval_mai.errors import ArgumentError, MaiError


@dataclass(frozen=True)
class Configuration:
    """Everything that an engine needs to start."""

    vllm_config: Any
    environment: dict[str, str]
    """Variables for the engine's processes."""
    description: str
    starts_alone: bool
    image_cache_gib: float
    """Size of the renderer's cache of prepared images. The renderer may serve two engines, so it keeps the images, and
    the engines keep none."""


def configure(config: EngineConfig, other: EngineConfig | None) -> Configuration:
    """Return the configuration. `other`: the second engine on this machine.

    Raises `ArgumentError`, `EngineUnavailable` or `EngineStartError`.
    """
    quiet = logs.is_quiet(config.arguments)
    if quiet:
        logs.hide_harmless_warnings()
    platform = vllm_arguments.platform()
    from vllm.usage.usage_lib import UsageContext

    try:
        with placement.unchanged_environment():
            gpus, other_gpus = _devices(config, other, platform)
            engine_args = _engine_args(config, quiet, platform)
            vllm_arguments.check_reads_images(config, model_config := engine_args.create_model_config())
            vllm_arguments.set_defaults(engine_args, config, model_config, gpus, platform)
            if platform == "cuda" and not {"gpu_memory_utilization", "kv_cache_memory_bytes"} & set(config.arguments):
                total_bytes = memory.total_gpu_bytes(gpus)
                share = memory.gpu_share(config, other, gpus, other_gpus, total_bytes)
                engine_args.gpu_memory_utilization = share
            workers = placement.worker_count(engine_args) * (2 if other is not None else 1)
            environment = placement.environment(gpus, workers, platform)
        if quiet:
            environment.update(logs.quiet_environment(platform))
        image_cache_gib, engine_args.mm_processor_cache_gb = engine_args.mm_processor_cache_gb, 0
        with ChildEnvironment(environment):
            # Without a usage context vLLM takes the smallest batch limits, those of a bare engine.
            vllm_config = engine_args.create_engine_config(UsageContext.LLM_CLASS)
    except MaiError:
        raise
    except Exception as error:
        raise start_error(config, error) from error
    return Configuration(
        vllm_config=vllm_config,
        environment=environment,
        description=_description(engine_args, gpus, platform),
        starts_alone=memory.starts_alone(config, other, gpus, other_gpus, platform),
        image_cache_gib=image_cache_gib,
    )


def _devices(
    config: EngineConfig, other: EngineConfig | None, platform: Platform
) -> tuple[list[str] | None, list[str] | None]:
    """Return the GPUs of this engine and of the other engine."""
    gpu_count, launcher = placement.visible_gpus(platform), Launcher.from_environment()
    own = placement.devices(config.side, config.arguments.get("devices"), gpu_count, launcher)
    if other is None:
        return own, None
    return own, placement.devices(other.side, other.arguments.get("devices"), gpu_count, launcher)


def _engine_args(config: EngineConfig, quiet: bool, platform: Platform) -> Any:
    arguments = {name: value for name, value in config.arguments.items() if name != "devices"}
    if arguments.get("enable_sleep_mode") and platform == "cpu":
        raise ArgumentError("sleep=true needs a GPU: on a CPU both models are in memory at once. Leave it out.")
    if quiet:
        arguments["log_config_file"] = str(logs.CONFIGURATION)
        arguments.setdefault("use_tqdm_on_load", False)
    return vllm_arguments.engine_args(config, arguments)


def _description(engine_args: Any, gpus: list[str] | None, platform: Platform) -> str:
    place = "on the CPU"
    if platform == "cuda":
        place = f"{engine_args.gpu_memory_utilization:.0%} of the memory of GPU {','.join(gpus or ['0'])}"
    cache = engine_args.kv_cache_memory_bytes
    kv_cache = f", a KV cache of {cache / memory.GIB:.2f} GiB" if cache else ""
    return f"{place}{kv_cache}, context {engine_args.max_model_len} tokens"
