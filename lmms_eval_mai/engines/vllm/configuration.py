"""Builds vLLM's configuration of one engine from the user's arguments."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.engines.checkpoints import check_checkpoint, is_debug, text_only_error
from lmms_eval_mai.engines.vllm.environment import BOUND_THREADS, Machine, detect_platform, worker_count
from lmms_eval_mai.engines.vllm.gpu_memory import GpuShare, shares
from lmms_eval_mai.errors import ArgumentError, EngineStartError, EngineUnavailable, MaiError
from lmms_eval_mai.redaction import error_text, one_line, redacted

PERFORMANCE_ARGUMENTS = frozenset(
    {
        *("devices", "device_ids", "gpu_memory_utilization", "kv_cache_memory_bytes", "cpu_offload_gb", "max_num_seqs"),
        *("max_num_batched_tokens", "block_size", "enforce_eager", "disable_log_stats", "load_format", "download_dir"),
        *("mm_processor_cache_gb", "limit_mm_per_prompt", "enable_prefix_caching", "distributed_executor_backend"),
    }
)
"""Arguments that change the speed, the device or the memory of an engine, but no answer, unless a smaller memory makes
the context shorter. A run may be resumed with other values."""

AUTOMATIC, ANY_CONTEXT = -1, "a context that vLLM chooses"
"""Value of vLLM's `max_model_len` with which vLLM chooses the longest context that fits, and its description."""
LONGEST_CPU_CONTEXT = 8_192
"""Longest context, in tokens, that is chosen for the user on a CPU."""

ON_CPU = {
    "enforce_eager": True,  # compilation takes minutes and needs a C++ compiler
    "block_size": 32,  # a short prompt never fills a block of 128, the default, so it is never cached
}
ONLY_IMAGES = {"video": 0, "audio": 0}
"""No request has a video or a sound, so vLLM neither warms up nor plans for them. Its cache of images has then the
tokens of a batch, or of the largest image that it expects. With small batches that was too small for an image of
InternVL."""
SHARED_GPU_HINT = (
    " Both models share a GPU. If its memory is too small, take a smaller pair (pair=qwen3vl-2b-4b needs about 22 GiB) "
    "or quantization=fp8; `lmms-eval-mai doctor --gpus GIB` with the same arguments shows what each model gets."
)
ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""On a CPU vLLM replaces the public name "uni" by two processes, which wait for each other in busy loops. It needs two
to bind threads to cores, and we bind none."""


@dataclass(frozen=True)
class Configuration:
    vllm_config: Any
    max_model_len: int
    """Requested context in tokens, or `AUTOMATIC`."""
    description: str
    shares_gpu: bool


def argument_names() -> frozenset[str] | None:
    try:
        detect_platform()
    except EngineUnavailable:
        return None
    from vllm.engine.arg_utils import AsyncEngineArgs

    return frozenset(field.name for field in dataclasses.fields(AsyncEngineArgs)) - {"model"} | {
        "devices",
        "chat_template_kwargs",
    }


@contextlib.contextmanager
def start_errors(config: EngineConfig, shares_gpu: bool = False) -> Iterator[None]:
    """Turn an error of vLLM into an `ArgumentError` if vLLM refuses the type or the range of an argument of the user,
    else into an `EngineStartError`. `shares_gpu`: both models are on one GPU, whose memory may be too small."""
    try:
        yield
    except MaiError:
        raise
    except Exception as error:
        given, reason = redacted(config.arguments), error_text(error)
        if isinstance(error, ValidationError):
            problem = error.errors()[0]
            name, reason = str(next(iter(problem["loc"]), "")), problem["msg"]
            if name in given:
                raise ArgumentError(f"{name}={given[name]} is invalid. vLLM: {reason}.") from error
        is_about_memory = shares_gpu and re.search("(?<!shared )memory(?! access)", reason, re.IGNORECASE)
        raise EngineStartError(
            f"vLLM cannot start {config.side}={config.model}. The engine's arguments: {given or 'none'}. Look for the "
            f"cause in vLLM's log above, and check the model's name or path, and the `{config.side}_<argument>` values."
            f"{SHARED_GPU_HINT if is_about_memory else ''} The last error: {one_line(reason)}"
        ) from error


def _check_socket_folder() -> None:
    """Refuse a folder with a path that is too long for vLLM's sockets. Raises `EngineUnavailable`."""
    from vllm import envs
    from zmq import IPC_PATH_MAX_LEN

    folder, limit = envs.VLLM_RPC_BASE_PATH, IPC_PATH_MAX_LEN - len("/ca9e8b5e-8f4f-4a0b-a6a3-2d1f4d3c7a11")
    if (length := len(os.fsencode(folder))) > limit:
        raise EngineUnavailable(
            f"vLLM makes its sockets in {folder}. This path has {length} bytes, and at most {limit} are possible. Set "
            "TMPDIR or VLLM_RPC_BASE_PATH to a shorter folder."
        )


def configure(config: EngineConfig, pair: Sequence[EngineConfig], machine: Machine) -> Configuration:
    """Return the configuration. `pair`: all vLLM engines of a pair, this one included. Imports vLLM and blocks. Raises
    `ArgumentError`, `EngineUnavailable`, or `EngineStartError` if vLLM refuses the model or its arguments."""
    check_checkpoint(config.side, config.model)
    _check_socket_folder()
    with start_errors(config):
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.usage.usage_lib import UsageContext

        share = None
        if machine.platform == "cuda":
            share = shares(pair, current_platform.device_count(), machine.rank)[config.side]
        elif "devices" in config.arguments:
            raise ArgumentError(f"{config.side}_devices names GPUs, but vLLM runs on the CPU here. Leave it out.")
        defaults = _cpu_defaults(config) if share is None else _gpu_defaults(config, share)
        arguments = AsyncEngineArgs(model=config.model, **_arguments(config, defaults))
        model_config = arguments.create_model_config()
        if not model_config.is_multimodal_model:
            raise text_only_error(config.side, config.model, model_config.architectures)
        if share is None:
            _limit_memory(arguments, model_config)
        elif arguments.max_model_len is None:
            arguments.max_model_len = AUTOMATIC
        # Without a usage context vLLM takes the smallest batch limits, those of a bare engine.
        vllm_config = arguments.create_engine_config(UsageContext.LLM_CLASS)
    device = "on the CPU" if share is None else f"on GPU {','.join(map(str, share.gpus))}"
    utilization = None if share is None else share.utilization
    memory = f" with {utilization:.0%} of its memory" if utilization is not None else ""
    length = arguments.max_model_len
    context = ANY_CONTEXT if length == AUTOMATIC else f"context {length} tokens"
    description = f"{device}{memory}, {str(model_config.dtype).removeprefix('torch.')}, {context}"
    return Configuration(vllm_config, length, description, shares_gpu=utilization is not None)


def _cpu_defaults(config: EngineConfig) -> dict[str, Any]:
    # If the user binds threads to cores, vLLM needs a process for the worker.
    is_one_process = worker_count(config) == 1 and os.environ.get(BOUND_THREADS) == "nobind"
    return {**ON_CPU, **({"distributed_executor_backend": ONE_PROCESS} if is_one_process else {})}


def _limit_memory(arguments: Any, model_config: Any) -> None:
    """Limit the context and the KV cache on a CPU, unless the user does."""
    if arguments.max_model_len is None:
        arguments.max_model_len = min(model_config.max_model_len, LONGEST_CPU_CONTEXT)
    if not arguments.kv_cache_memory_bytes:
        # For four sequences of full length. vLLM's default is 92% of the memory of a NUMA node.
        heads, head_size = model_config.get_total_num_kv_heads(), model_config.get_head_size()
        per_token = 2 * 2 * model_config.hf_text_config.num_hidden_layers * heads * head_size  # keys, values; 16 bits
        arguments.kv_cache_memory_bytes = max(64 << 20, 4 * per_token * arguments.max_model_len)


def _gpu_defaults(config: EngineConfig, share: GpuShare) -> dict[str, Any]:
    defaults: dict[str, Any] = {"device_ids": list(share.gpus)}
    if share.utilization is not None:
        defaults["gpu_memory_utilization"] = share.utilization
    if "max_num_batched_tokens" not in config.arguments:
        defaults["limit_mm_per_prompt"] = ONLY_IMAGES
    if "devices" in config.arguments:  # the named GPUs hold one model together
        copies = worker_count(config) // int(config.arguments.get("tensor_parallel_size") or 1)
        defaults["tensor_parallel_size"] = max(1, len(share.gpus) // copies)
    return defaults


def _arguments(config: EngineConfig, defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the user's arguments for vLLM, and these defaults, in vLLM's types."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    arguments = {"use_tqdm_on_load": is_debug(), **defaults}
    types = {field.name: str(field.type) for field in dataclasses.fields(AsyncEngineArgs)}
    for name, value in config.arguments.items():
        if name in ("chat_template_kwargs", "devices") or (name == "device_ids" and name in defaults):
            continue  # of each call; the GPUs are in the defaults
        # lmms-eval reads -1 and 1e4 as floats.
        whole = isinstance(value, float) and value.is_integer() and "float" not in types.get(name, "")
        is_text = re.fullmatch(r"(<class 'str'>|str)( \| None)?", types.get(name, "")) and isinstance(value, int)
        arguments[name] = str(value) if is_text else int(value) if whole else value
    if arguments.get("max_model_len") == "auto":
        arguments["max_model_len"] = AUTOMATIC  # vLLM reads "auto" only on its own command line
    return arguments
