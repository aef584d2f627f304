"""The arguments that vLLM gets: engine arguments with our defaults, and decoding. Also finds vLLM's platform."""

import dataclasses
from typing import Any

from lmms_eval_mai.contract import EngineConfig, Sampling
from lmms_eval_mai.engines.checkpoints import check_checkpoint
from lmms_eval_mai.engines.vllm.gpu_plan import OnGpus
from lmms_eval_mai.engines.vllm.host_memory import SLEEP_ARGUMENTS
from lmms_eval_mai.engines.vllm.memory import cpu_kv_cache_bytes
from lmms_eval_mai.engines.vllm.placement import Platform, threads_are_bound, worker_count
from lmms_eval_mai.engines.vllm.planning.plan import EnginePlan
from lmms_eval_mai.errors import EngineUnavailable

INSTALL = (
    'Install it in a clone of lmms-eval-mai: `pip install -e ".[vllm]"` on a machine with a GPU, or without a GPU '
    '`pip install -e ".[cpu]" --extra-index-url https://download.pytorch.org/whl/cpu`.'
)

PERFORMANCE_ARGUMENTS = {
    *("devices", "gpu_memory_utilization", "kv_cache_memory_bytes", "swap_space", "cpu_offload_gb", "max_num_seqs"),
    *("max_num_batched_tokens", "block_size", "enforce_eager", "disable_log_stats", "load_format", "download_dir"),
    *("mm_processor_cache_gb", "enable_prefix_caching", "distributed_executor_backend", *SLEEP_ARGUMENTS),
    *("renderer_processes", "per_request_spec_decode_metrics"),
}
"""Arguments that change the speed, the device or the memory of an engine, but no answer. A run may be resumed with
other values."""

MAX_MODEL_LEN: dict[Platform, int] = {"cuda": 32768, "cpu": 8192}
"""Longest context, in tokens, that is chosen for the user. Qwen3-VL's own 262,144 tokens need 36 GiB of KV cache per
sequence (8B)."""

UNIPROC_EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"


def detect_platform() -> Platform:
    """Return where vLLM runs on this machine. Raises `EngineUnavailable` with the command that installs vLLM."""
    try:
        from vllm.platforms import current_platform
    except ImportError as error:
        raise EngineUnavailable(f"engine=vllm needs vLLM, and its import fails ({error}). {INSTALL}") from error
    if current_platform.is_cpu():
        return "cpu"
    if current_platform.is_cuda_alike():
        return "cuda"
    raise EngineUnavailable(
        "engine=vllm found neither a GPU nor vLLM's CPU build on this machine. Check `nvidia-smi`, or replace vllm "
        'in a clone of lmms-eval-mai: `pip uninstall -y vllm && pip install -e ".[cpu]" --extra-index-url '
        "https://download.pytorch.org/whl/cpu`."
    )


def engine_args(config: EngineConfig, arguments: dict[str, Any]) -> Any:
    """Return vLLM's `AsyncEngineArgs`. Raises `ArgumentError` if the checkpoint does not exist."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    fields = {f.name: str(f.type) for f in dataclasses.fields(AsyncEngineArgs)}
    for name, value in arguments.items():
        # lmms-eval reads -1 and 1e4 as floats.
        if isinstance(value, float) and value.is_integer() and "float" not in fields[name]:
            arguments[name] = int(value)
    if arguments.get("max_model_len") == "auto":
        arguments["max_model_len"] = -1  # vLLM reads "auto" only on its own command line
    check_checkpoint(config.side, config.model)
    return AsyncEngineArgs(model=config.model, **arguments)


def set_planned(engine_args: Any, config: EngineConfig, on_gpus: OnGpus) -> None:
    """Set the arguments of a memory plan that the user left out."""
    planned: dict[str, Any] = {
        "gpu_memory_utilization": on_gpus.share,
        "tensor_parallel_size": on_gpus.place.tensor_parallel,
    }
    if (plan := on_gpus.plan) is not None:
        planned |= {"max_model_len": plan.limits.context, "max_num_seqs": plan.limits.max_num_seqs}
        if "enable_chunked_prefill" not in config.arguments:  # without it, vLLM needs a step for the whole context
            # vLLM's own default follows from the whole GPU, also on a MIG slice of it.
            planned["max_num_batched_tokens"] = plan.limits.max_num_batched_tokens
        if plan.max_pixels is not None:
            engine_args.mm_processor_kwargs = {**(engine_args.mm_processor_kwargs or {}), "max_pixels": plan.max_pixels}
    for name, value in planned.items():
        if config.arguments.get(name) is None:
            setattr(engine_args, name, value)


def planned_identity(config: EngineConfig, plan: EnginePlan) -> dict[str, Any]:
    """Return the arguments of a plan that can change an answer and differ from the usual ones: a context other than
    `MAX_MODEL_LEN`, tensor parallelism and a limit of pixels. Arguments of the user are left out: they are known."""
    found: dict[str, Any] = {}
    usual = min(MAX_MODEL_LEN["cuda"], plan.request.size.max_context)
    if config.arguments.get("max_model_len") is None and plan.limits.context != usual:
        found["max_model_len"] = plan.limits.context
    if config.arguments.get("tensor_parallel_size") is None and plan.limits.tensor_parallel != 1:
        found["tensor_parallel_size"] = plan.limits.tensor_parallel
    if plan.max_pixels is not None:
        found["max_pixels"] = plan.max_pixels
    return found


def set_defaults(engine_args: Any, config: EngineConfig, model_config: Any, platform: Platform) -> None:
    """Set arguments that the user left out and whose default in vLLM needs too much memory or time if two engines share
    one machine. The memory plan of a GPU has set its arguments before (`set_planned`)."""
    given = config.arguments
    if engine_args.max_model_len is None:
        engine_args.max_model_len = min(model_config.max_model_len, MAX_MODEL_LEN[platform])
    if engine_args.speculative_config is not None and "per_request_spec_decode_metrics" not in given:
        engine_args.per_request_spec_decode_metrics = "summary"  # for the drafted and accepted tokens of a call
    if platform != "cpu":
        return
    # On a CPU vLLM runs an engine's core and worker in two processes, also with the backend "uni", and they wait for
    # each other in busy loops. vLLM needs two processes to bind threads. We bind no thread, so one process is enough.
    one_process = worker_count(engine_args) == 1 and not threads_are_bound()
    if one_process and "distributed_executor_backend" not in given:
        engine_args.distributed_executor_backend = UNIPROC_EXECUTOR
    if "enforce_eager" not in given:
        engine_args.enforce_eager = True  # compilation takes minutes and needs a C++ compiler
    if "block_size" not in given:
        engine_args.block_size = 32  # a short prompt never fills a block of 128, the default, so it is never cached
    if "kv_cache_memory_bytes" not in given:
        engine_args.kv_cache_memory_bytes = cpu_kv_cache_bytes(model_config, engine_args.max_model_len)


def sampling_params(sampling: Sampling, detokenize: bool) -> Any:
    """Return vLLM's `SamplingParams`, with which vLLM returns an answer only when it is complete. `detokenize`: whether
    vLLM decodes it; with stop texts it always does, to find them."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        seed=sampling.seed,
        stop=list(sampling.stop),
        ignore_eos=sampling.ignore_eos,
        detokenize=detokenize or bool(sampling.stop),
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
