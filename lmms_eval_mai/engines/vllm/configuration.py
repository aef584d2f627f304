"""Builds the configuration of one vLLM engine from its arguments, and checks it."""

from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.contract import SIDES, EngineConfig
from lmms_eval_mai.engines.checkpoints import text_only_error
from lmms_eval_mai.engines.vllm import arguments as vllm_arguments
from lmms_eval_mai.engines.vllm import attention, logs, machine_checks, memory, openmp, placement
from lmms_eval_mai.engines.vllm.argument_names import OWN_ARGUMENTS
from lmms_eval_mai.engines.vllm.errors import invalid_argument, start_error
from lmms_eval_mai.engines.vllm.gpu_plan import OnGpus, on_gpus
from lmms_eval_mai.engines.vllm.machine_checks import PlacedEngine
from lmms_eval_mai.engines.vllm.placement import ChildEnvironment, Launcher, Platform
from lmms_eval_mai.engines.vllm.planning.advice import engine_line
from lmms_eval_mai.engines.vllm.planning.memory import GIB
from lmms_eval_mai.errors import ArgumentError, MaiError


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
    planned_identity: dict[str, Any]
    """Planned arguments that can change an answer."""
    open_samples: int | None
    """Samples that should be open at the same time. None: no plan was possible."""
    renderer_processes: int
    """Number of processes that render prompts; 1: this process."""
    layers: int | None
    """Number of decoder layers. None: the run does not ask for attention weights."""


def configure(config: EngineConfig, other: EngineConfig | None) -> Configuration:
    """Return the configuration. `other`: the second engine on this machine.

    Raises `ArgumentError`, `EngineUnavailable` or `EngineStartError`.
    """
    quiet = logs.is_quiet(config.arguments)
    if quiet or logs.shows_only_errors():
        logs.hide_harmless_warnings()
    platform = vllm_arguments.detect_platform()
    try:
        return _configure(config, other, platform, quiet)
    except MaiError:
        raise
    except Exception as error:
        raise invalid_argument(config, error) or start_error(config, error) from error


def _configure(config: EngineConfig, other: EngineConfig | None, platform: Platform, quiet: bool) -> Configuration:
    with placement.unchanged_environment():
        own, others = _on_gpus(config, other, platform)
        engine_args = vllm_arguments.engine_args(config, _given_arguments(config, platform, quiet))
        if own is not None:
            vllm_arguments.set_planned(engine_args, config, own)
        model_config = engine_args.create_model_config()
        if not model_config.is_multimodal_model:
            raise text_only_error(config.side, config.model, model_config.architectures)
        vllm_arguments.set_defaults(engine_args, config, model_config, platform)
        if config.attention:
            attention.prepare(engine_args, config)
        # An engine that is awake has its GPUs to itself.
        awake_too = None if config.arguments.get("enable_sleep_mode") else other
        workers = placement.worker_count(engine_args) * (2 if awake_too is not None else 1)
        gpus, other_gpus = (None if one is None else one.place.gpus for one in (own, others))
        environment = placement.environment(gpus, workers, platform)
    if quiet:
        environment.update(logs.quiet_environment(platform))
    if config.attention:
        environment.update(attention.ENVIRONMENT)
    image_cache_gib = engine_args.mm_processor_cache_gb
    engine_args.mm_processor_cache_gb = 0  # the renderer keeps the images
    plan = own.plan if own is not None else None
    vllm_config = _vllm_config(engine_args, environment)
    return Configuration(
        vllm_config=vllm_config,
        environment=environment,
        description=_description(engine_args, str(model_config.dtype), own),
        starts_alone=memory.starts_alone(config, awake_too, gpus, other_gpus, platform),
        image_cache_gib=image_cache_gib,
        planned_identity={} if plan is None else vllm_arguments.planned_identity(config, plan),
        open_samples=None if plan is None else plan.open_samples,
        renderer_processes=placement.renderer_processes(config.side, config.arguments.get("renderer_processes")),
        layers=attention.check(config, vllm_config) if config.attention else None,
    )


def _on_gpus(
    config: EngineConfig, other: EngineConfig | None, platform: Platform
) -> tuple[OnGpus | None, OnGpus | None]:
    """Return where this engine and the other one run. None: on the CPU, or there is no other engine."""
    gpus, launcher = placement.visible_gpus(platform), Launcher.from_environment()
    configs = sorted((one for one in (config, other) if one is not None), key=lambda one: SIDES.index(one.side))
    if not gpus and platform == "cuda":
        raise ArgumentError(
            "engine=vllm is built for GPUs, and this process can see none: check CUDA_VISIBLE_DEVICES and `nvidia-smi`."
        )
    if not gpus:
        for one in configs:
            placement.given_devices(one.side, one.arguments.get("devices"), 0, launcher)
        machine_checks.check([PlacedEngine(one, ()) for one in configs], gpus)
        return None, None
    machine_checks.check_readable(configs, gpus)
    found = on_gpus(configs, gpus, launcher, turns=bool(config.arguments.get("enable_sleep_mode")))
    machine_checks.check([PlacedEngine(one, found[one.side].place.gpus) for one in configs], gpus)
    return found[config.side], None if other is None else found[other.side]


def _given_arguments(config: EngineConfig, platform: Platform, quiet: bool) -> dict[str, Any]:
    """Return the arguments for vLLM: the user's without `devices`, and those that hide its log. Raises `ArgumentError`
    for sleep on a CPU."""
    arguments = {name: value for name, value in config.arguments.items() if name not in OWN_ARGUMENTS}
    if arguments.get("enable_sleep_mode") and platform == "cpu":
        raise ArgumentError("sleep=true needs a GPU: on a CPU both models are in memory at once. Leave it out.")
    if quiet:
        arguments["log_config_file"] = str(logs.CONFIGURATION)
        arguments.setdefault("use_tqdm_on_load", False)
    return arguments


def _vllm_config(engine_args: Any, environment: dict[str, str]) -> Any:
    """Return vLLM's own configuration. vLLM checks the arguments with the environment of the engine's processes. On a
    CPU, vLLM's additions go into `environment`."""
    from vllm.usage.usage_lib import UsageContext

    with ChildEnvironment(environment):
        # Without a usage context vLLM takes the smallest batch limits, those of a bare engine.
        config = engine_args.create_engine_config(UsageContext.LLM_CLASS)
        openmp.add_what_vllm_preloads(environment)
        return config


def _description(engine_args: Any, dtype: str, on_gpus: OnGpus | None) -> str:
    dtype = dtype.removeprefix("torch.")
    if on_gpus is not None and on_gpus.plan is not None:
        return f"{dtype}, {engine_line(on_gpus.plan)}"
    place = "on the CPU"
    if on_gpus is not None:
        gpus = ",".join(map(str, on_gpus.place.gpus))
        place = f"{engine_args.gpu_memory_utilization:.0%} of the memory of GPU {gpus}"
    cache = engine_args.kv_cache_memory_bytes
    kv_cache = f", a KV cache of {cache / GIB:.2f} GiB" if cache else ""
    return f"{place}, {dtype}{kv_cache}, context {engine_args.max_model_len} tokens"
