"""What vLLM is told: where it runs, its engine arguments, how to decode."""

import dataclasses
from typing import Any

from lmms_eval_mai.engines.base import EngineConfig, Sampling
from lmms_eval_mai.engines.checkpoints import check_checkpoint
from lmms_eval_mai.engines.vllm.placement import Platform
from lmms_eval_mai.errors import EngineUnavailable

INSTALL = (
    'Install it with `pip install "lmms-eval-mai[vllm]"` on a machine with a GPU; on one without, with '
    '`pip install "lmms-eval-mai[cpu]" --extra-index-url https://download.pytorch.org/whl/cpu`.'
)

PERFORMANCE_ARGUMENTS = {
    *("devices", "gpu_memory_utilization", "kv_cache_memory_bytes", "swap_space", "cpu_offload_gb", "max_num_seqs"),
    *("max_num_batched_tokens", "block_size", "enforce_eager", "disable_log_stats", "load_format", "download_dir"),
    *("mm_processor_cache_gb", "enable_prefix_caching", "enable_sleep_mode", "distributed_executor_backend"),
}
"""Arguments that say how fast or where, and not what: a run that is resumed may have others."""


def platform() -> Platform:
    """Where vLLM would run here. Raises `EngineUnavailable` with the command that installs it."""
    try:
        from vllm.platforms import current_platform
    except ImportError as error:
        raise EngineUnavailable(f"engine=vllm needs vLLM, which does not import here ({error}). {INSTALL}") from error
    if current_platform.is_cpu():
        return "cpu"
    if current_platform.is_cuda_alike():
        return "cuda"
    raise EngineUnavailable(
        "engine=vllm found neither a GPU nor vLLM's CPU build on this machine. Check `nvidia-smi`, or replace vllm: "
        '`pip uninstall -y vllm && pip install "lmms-eval-mai[cpu]" --extra-index-url '
        "https://download.pytorch.org/whl/cpu`."
    )


def engine_args(config: EngineConfig, arguments: dict[str, Any]) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs

    fields = {f.name: str(f.type) for f in dataclasses.fields(AsyncEngineArgs)}
    for name, value in arguments.items():
        # lmms-eval reads -1 and 1e4 as floats.
        if isinstance(value, float) and value.is_integer() and "float" not in fields[name]:
            arguments[name] = int(value)
    check_checkpoint(config.side, config.model)
    return AsyncEngineArgs(model=config.model, **arguments)


def sampling_params(sampling: Sampling) -> Any:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
        ignore_eos=sampling.ignore_eos,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
