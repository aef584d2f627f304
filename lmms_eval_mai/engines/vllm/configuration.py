"""Builds the configuration of one vLLM engine from its arguments, and checks it."""

from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.engines.base import EngineConfig
from lmms_eval_mai.engines.checkpoints import text_only_error
from lmms_eval_mai.engines.vllm import arguments as vllm_arguments
from lmms_eval_mai.engines.vllm import logs, memory, placement
from lmms_eval_mai.engines.vllm.errors import start_error
from lmms_eval_mai.engines.vllm.placement import ChildEnvironment, Launcher, Platform
from lmms_eval_mai.errors import ArgumentError, MaiError

MEMORY_ARGUMENTS = {"gpu_memory_utilization", "kv_cache_memory_bytes"}
"""With one of these arguments the user decides how much GPU memory the engine takes."""


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


def configure(config: EngineConfig, other: EngineConfig | None) -> Configuration:
    """Return the configuration. `other`: the second engine on this machine.

    Raises `ArgumentError`, `EngineUnavailable` or `EngineStartError`.
    """
    quiet = logs.is_quiet(config.arguments)
    if quiet:
        logs.hide_harmless_warnings()
    platform = vllm_arguments.detect_platform()
    try:
        return _configure(config, other, platform, quiet)
    except MaiError:
        raise
    except Exception as error:
        raise start_error(config, error) from error


def _configure(config: EngineConfig, other: EngineConfig | None, platform: Platform, quiet: bool) -> Configuration:
    with placement.unchanged_environment():
        gpus, other_gpus = _devices(config, other, platform)
        engine_args = vllm_arguments.engine_args(config, _given_arguments(config, platform, quiet))
        model_config = engine_args.create_model_config()
        if not model_config.is_multimodal_model:
            raise text_only_error(config.side, config.model, model_config.architectures)
        vllm_arguments.set_defaults(engine_args, config, model_config, gpus, platform)
        if platform == "cuda" and not MEMORY_ARGUMENTS & set(config.arguments):
            total_bytes = memory.total_gpu_bytes(gpus)
            engine_args.gpu_memory_utilization = memory.gpu_share(config, other, gpus, other_gpus, total_bytes)
        workers = placement.worker_count(engine_args) * (2 if other is not None else 1)
        environment = placement.environment(gpus, workers, platform)
    if quiet:
        environment.update(logs.quiet_environment(platform))
    image_cache_gib = engine_args.mm_processor_cache_gb
    engine_args.mm_processor_cache_gb = 0  # the renderer keeps the images
    return Configuration(
        vllm_config=_vllm_config(engine_args, environment),
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


def _given_arguments(config: EngineConfig, platform: Platform, quiet: bool) -> dict[str, Any]:
    """Return the arguments for vLLM: the user's without `devices`, and those that hide its log. Raises `ArgumentError`
    for sleep on a CPU."""
    arguments = {name: value for name, value in config.arguments.items() if name != "devices"}
    if arguments.get("enable_sleep_mode") and platform == "cpu":
        raise ArgumentError("sleep=true needs a GPU: on a CPU both models are in memory at once. Leave it out.")
    if quiet:
        arguments["log_config_file"] = str(logs.CONFIGURATION)
        arguments.setdefault("use_tqdm_on_load", False)
    return arguments


def _vllm_config(engine_args: Any, environment: dict[str, str]) -> Any:
    """Return vLLM's own configuration. vLLM checks the arguments with the environment of the engine's processes."""
    from vllm.usage.usage_lib import UsageContext

    with ChildEnvironment(environment):
        # Without a usage context vLLM takes the smallest batch limits, those of a bare engine.
        return engine_args.create_engine_config(UsageContext.LLM_CLASS)


def _description(engine_args: Any, gpus: list[str] | None, platform: Platform) -> str:
    place = "on the CPU"
    if platform == "cuda":
        place = f"{engine_args.gpu_memory_utilization:.0%} of the memory of GPU {','.join(gpus or ['0'])}"
    cache = engine_args.kv_cache_memory_bytes
    kv_cache = f", a KV cache of {cache / memory.GIB:.2f} GiB" if cache else ""
    return f"{place}{kv_cache}, context {engine_args.max_model_len} tokens"
