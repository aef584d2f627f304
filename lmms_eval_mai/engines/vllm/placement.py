"""Where a vLLM engine runs and how much memory it takes: two engines share one machine.

Engines start one after the other (vLLM measures free memory at start, vllm issue #55827), so the split is
decided before the first one starts. Arguments that the user gives always win.
"""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from loguru import logger

from lmms_eval_mai.engines.base import EngineConfig
from lmms_eval_mai.errors import ArgumentError

Platform = Literal["cpu", "cuda"]

MAX_MODEL_LEN: dict[Platform, int] = {"cuda": 32768, "cpu": 8192}
"""Default context. Qwen3-VL's own 262,144 tokens would ask for 36 GiB of KV cache per sequence (8B)."""
GPU_SHARE = 0.90
"""Of a GPU's memory, what the engines on it take together."""
GIB = 1 << 30
UNIPROC_EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"

# The launcher's own variables would make an engine's process join the launcher's group.
_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def devices(side: str, given: Any, platform: Platform) -> list[str] | None:
    """`small_devices=0`, `large_devices=[1,2]` -> the GPUs of one engine; None where the user names none. Raises
    `ArgumentError` where they are not there, or the ranks of a launcher would share one."""
    ranks, rank = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
    if given is None:
        if platform == "cuda" and rank >= (count := _gpus()):
            raise ArgumentError(
                f"{ranks} ranks run on this machine and {count} GPUs can be seen: each rank drives its own pair on a "
                f"GPU of its own. Start {count} of them, or let them share endpoints (small=http://..., large=http://...)."
            )
        return None
    if ranks > 1:
        raise ArgumentError(
            f"{side}_devices={given} would be the same for each of the {ranks} ranks on this machine: leave it out, "
            "and each rank takes the GPU of its own number, or start a single process."
        )
    parts = given if isinstance(given, list) else str(given).replace(";", ",").replace("+", ",").split(",")
    found = [str(part).strip() for part in parts]
    if not all(part.isdigit() for part in found):
        raise ArgumentError(f"{side}_devices={given} is no list of GPU numbers: write {side}_devices=[0,1].")
    if platform == "cpu":
        raise ArgumentError(f"{side}_devices={given} names GPUs, but vLLM runs on the CPU here: leave it out.")
    if max(map(int, found)) >= (count := _gpus()):
        raise ArgumentError(f"{side}_devices={given} names a GPU that is not there: {count} can be seen, from 0 on.")
    return found


def _gpus() -> int:
    from vllm.platforms import current_platform

    count: int = current_platform.device_count()
    return count


def worker_count(engine_args: Any) -> int:
    """How many parts vLLM cuts the engine into, each a process of its own."""
    ways = ("tensor_parallel", "pipeline_parallel", "prefill_context_parallel", "data_parallel")
    return math.prod(getattr(engine_args, f"{way}_size") for way in ways)


def environment(gpus: list[str] | None, parts: int, platform: Platform) -> dict[str, str]:
    """Variables under which the engine's process starts. `parts`: workers of all engines of this process."""
    if platform == "cpu":
        return _cpu_threads(parts)
    # vLLM's default is to fork, which a process with threads and another engine's locks must not.
    variables = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    if gpus is None and "LOCAL_RANK" in os.environ:
        gpus = [os.environ["LOCAL_RANK"]]  # each rank drives its own pair on its own GPU
    if gpus is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        numbers = visible.split(",") if visible else None
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(numbers[int(gpu)] if numbers else gpu for gpu in gpus)
    return variables


def _cpu_threads(parts: int) -> dict[str, str]:
    """As many threads a part as its share of this rank's cores, bound to none: what prepares prompts needs cores too,
    and bound threads wait for it on theirs (vLLM's "auto" would bind both engines to the same). So it was on two cores;
    on many, or two sockets, a binding of one's own may be better, and stays."""
    if "VLLM_CPU_OMP_THREADS_BIND" in os.environ:
        return {}
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    threads = len(os.sched_getaffinity(0)) // (ranks * parts)
    return {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(max(1, threads))}


@contextlib.contextmanager
def environment_for_children(variables: dict[str, str]) -> Iterator[None]:
    """Set variables for the processes that start inside, and take the launcher's away; restore both after."""
    saved = {name: os.environ.get(name) for name in (*variables, *_LAUNCHER)}
    for name in _LAUNCHER:
        os.environ.pop(name, None)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def set_defaults(
    engine_args: Any, config: EngineConfig, other: EngineConfig | None, gpus: list[str] | None, platform: Platform
) -> str:
    """Fill in what the user left open and vLLM's own default would get wrong for a pair; -> what was chosen."""
    given = config.arguments
    model_config = engine_args.create_model_config()
    if "max_model_len" not in given:
        engine_args.max_model_len = min(model_config.max_model_len, MAX_MODEL_LEN[platform])
    if gpus is not None and "tensor_parallel_size" not in given:
        engine_args.tensor_parallel_size = len(gpus)
    if platform == "cpu":
        _set_cpu_defaults(engine_args, given, model_config)
    elif not {"gpu_memory_utilization", "kv_cache_memory_bytes"} & set(given):
        engine_args.gpu_memory_utilization = _gpu_share(config, other, gpus)
    share = f"{engine_args.gpu_memory_utilization:.0%} of the memory of GPU {','.join(gpus or ['0'])}"
    cache = f"a KV cache of {(engine_args.kv_cache_memory_bytes or 0) / GIB:.2f} GiB"
    where = "on the CPU" if platform == "cpu" else share
    given_cache = f", {cache}" if engine_args.kv_cache_memory_bytes else ""
    return f"{where}{given_cache}, context {engine_args.max_model_len} tokens"


def _set_cpu_defaults(engine_args: Any, given: Any, model_config: Any) -> None:
    # Core and worker in two processes, vLLM's way on a CPU ("uni" is taken for "mp"), wait for each other by spinning.
    # vLLM wants two so that it can bind threads; ours are not bound, and a user's own binding keeps vLLM's way.
    bound = "VLLM_CPU_OMP_THREADS_BIND" in os.environ
    if worker_count(engine_args) == 1 and not bound and "distributed_executor_backend" not in given:
        engine_args.distributed_executor_backend = UNIPROC_EXECUTOR
    if "enforce_eager" not in given:
        engine_args.enforce_eager = True  # compiling takes minutes and wants a C++ compiler
    if "block_size" not in given:
        engine_args.block_size = 32  # of 128, the default, a short prompt never fills one, and nothing is cached
    if "kv_cache_memory_bytes" not in given:
        # By default vLLM wants 92% of a NUMA node's memory. Four sequences of full length, at least 64 MiB.
        heads, size = model_config.get_total_num_kv_heads(), model_config.get_head_size()
        layers = model_config.hf_text_config.num_hidden_layers
        per_token = 2 * layers * heads * size * 2
        engine_args.kv_cache_memory_bytes = max(64 << 20, 4 * per_token * engine_args.max_model_len)


def _gpu_share(config: EngineConfig, other: EngineConfig | None, gpus: list[str] | None) -> float:
    """This engine's part of its GPU's memory: its weights, and half of what both leave for the KV caches."""
    if other is None:
        return GPU_SHARE
    theirs = devices(other.side, other.arguments.get("devices"), "cuda")
    if gpus is not None and theirs is not None and not set(gpus) & set(theirs):
        return GPU_SHARE
    if "gpu_memory_utilization" in other.arguments:
        return GPU_SHARE - float(other.arguments["gpu_memory_utilization"])
    from vllm.platforms import current_platform

    # Through NVML: torch would open a CUDA context here.
    total = current_platform.get_device_total_memory(int(gpus[0]) if gpus else 0)
    own_bytes, other_bytes = _bytes_on_a_gpu(config, gpus), _bytes_on_a_gpu(other, theirs)
    if own_bytes is None or other_bytes is None:
        logger.warning(
            f"The size of {config.model if own_bytes is None else other.model} is unknown: memory is split evenly. "
            "Set small_gpu_memory_utilization and large_gpu_memory_utilization to split it otherwise."
        )
        return GPU_SHARE / 2
    rest = GPU_SHARE * total - own_bytes - other_bytes
    if rest < 2 * GIB:
        raise ArgumentError(
            f"{config.model} ({own_bytes / GIB:.1f} GiB) and {other.model} ({other_bytes / GIB:.1f} GiB) do not fit "
            f"this GPU together: of {GPU_SHARE:.0%} of its {total / GIB:.1f} GiB, with 2 GiB for KV caches, they are "
            f"{2 - rest / GIB:.1f} GiB short. Give each its own GPU (small_devices=0,large_devices=1), let them take "
            "turns (sleep=true), or use smaller models."
        )
    return (own_bytes + rest / 2) / total


def _bytes_on_a_gpu(config: EngineConfig, gpus: list[str] | None) -> float | None:
    size = weight_bytes(config.model)
    parts = int(config.arguments.get("tensor_parallel_size") or len(gpus or [0]))
    return None if size is None else size / parts


def weight_bytes(model: str) -> int | None:
    """Size of a checkpoint's weights: on disk, else as the hub lists them; None if neither is known."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return sum(file.stat().st_size for file in folder.glob("*.safetensors")) or None
    from huggingface_hub import HfApi, snapshot_download

    try:
        cached = Path(snapshot_download(model, local_files_only=True, allow_patterns=["*.safetensors"]))
        if size := sum(file.stat().st_size for file in cached.glob("*.safetensors")):
            return size
    except Exception as error:
        logger.debug(f"{model} is not in the local cache ({error})")
    try:
        files = HfApi().model_info(model, files_metadata=True).siblings or []
    except Exception as error:
        logger.debug(f"the hub does not tell the size of {model} ({error})")
        return None
    return sum(f.size or 0 for f in files if f.rfilename.endswith(".safetensors")) or None
