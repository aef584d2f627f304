"""Decides on which GPUs the two models run, and how they share the memory of one GPU.

With two or more GPUs each model has its own, and vLLM's own choices stay. On one GPU there is one rule: each model gets
its weights, a fixed reserve, and half of the rest. The context is the model's, at most 32,768 tokens. If the KV cache
cannot hold one such sequence, vLLM chooses the context itself (`max_model_len=-1`).

The figures are estimates. vLLM measures the memory when it starts, and it alone decides whether an engine fits.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from loguru import logger

from lmms_eval_mai.contract import EngineConfig, Side
from lmms_eval_mai.engines.checkpoints import local_folder, weight_bytes
from lmms_eval_mai.engines.vllm.environment import Launcher, worker_count
from lmms_eval_mai.errors import ArgumentError

GIB = 1 << 30
USABLE = 0.92
"""Share of a GPU's memory that the engines on it take together: vLLM's default of `gpu_memory_utilization`. The rest is
for CUDA contexts (0.6 GiB for each engine)."""
RESERVE_BYTES = int(3.5 * GIB)
"""What an engine needs besides weights and KV cache: about 2 GiB for the vision tower with the largest image, 0.6 for
buffers, 0.6 for CUDA graphs, and the logits. Estimated from vLLM's source, not measured."""
MAX_CONTEXT = 32_768
"""Longest context, in tokens, that is chosen for the user. Qwen3-VL's own 262,144 tokens need 36 GiB of KV cache for
one sequence (8B)."""
LEAST_CONTEXT = 4_096
"""With a shorter context, an image and its thinking do not fit."""
AUTOMATIC = -1
"""Value of vLLM's `max_model_len` with which vLLM chooses the longest context that fits."""
FP8_SHARE = 0.6
"""Size of weights in 8 bits relative to 16 bits: embeddings, output layer and vision tower may stay in 16 bits."""
BYTES_OF_DTYPES = {"float32": 4, "float": 4}

Verdict = Literal["fits", "tight", "does not fit", "unknown"]


@dataclass(frozen=True)
class ModelMemory:
    """What decides the memory of a model, for weights and KV cache of 16 bits."""

    weight_bytes: int
    kv_bytes_per_token: int
    max_context: int
    """Tokens."""


def kv_bytes(layers: int, kv_heads: int, head_size: int) -> int:
    """Return the bytes of a token in a KV cache of 16 bits."""
    keys_and_values, bytes_per_number = 2, 2
    return keys_and_values * layers * kv_heads * head_size * bytes_per_number


KNOWN_MODELS = {
    "Qwen/Qwen3-VL-2B-Instruct": ModelMemory(4_255_064_064, kv_bytes(28, 8, 128), 262_144),
    "Qwen/Qwen3-VL-4B-Instruct": ModelMemory(8_875_631_616, kv_bytes(36, 8, 128), 262_144),
    "Qwen/Qwen3-VL-8B-Instruct": ModelMemory(17_534_247_392, kv_bytes(36, 8, 128), 262_144),
    "OpenGVLab/InternVL3_5-1B-HF": ModelMemory(2_121_648_128, kv_bytes(28, 8, 128), 40_960),
    "OpenGVLab/InternVL3_5-2B-HF": ModelMemory(4_696_547_328, kv_bytes(28, 8, 128), 40_960),
    "OpenGVLab/InternVL3_5-4B-HF": ModelMemory(9_464_830_976, kv_bytes(36, 8, 128), 40_960),
    "OpenGVLab/InternVL3_5-8B-HF": ModelMemory(17_056_489_472, kv_bytes(36, 8, 128), 40_960),
    "OpenGVLab/InternVL3_5-14B-HF": ModelMemory(30_238_900_224, kv_bytes(40, 8, 128), 40_960),
}
"""The models of the named pairs, so that `doctor --gpus` knows them without their files. The bytes of the weights were
counted from the model classes of transformers."""


@dataclass(frozen=True)
class Share:
    """What one engine gets of the memory of each of its GPUs."""

    gpus: tuple[int, ...]
    """Numbers of its GPUs."""
    utilization: float | None
    """vLLM's `gpu_memory_utilization`. None: vLLM's default."""
    weight_bytes: int | None = None
    """On one of its GPUs, as the next two. None: unknown."""
    kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    context: int | None = None
    """`max_model_len`; `AUTOMATIC`: vLLM chooses it. None: the user gives it, or the model is unknown."""
    verdict: Verdict = "unknown"
    """fits: the KV cache holds a sequence of full length. tight: vLLM chooses a shorter context."""


def memory_of(config: EngineConfig) -> ModelMemory | None:
    """Return the memory of a model with the user's types of weights and KV cache. None: unknown."""
    given = config.arguments
    known = KNOWN_MODELS.get(config.model) or _checkpoint_memory(config.model, given.get("revision"))
    if known is None or given.get("cpu_offload_gb"):
        return None
    number_bytes = BYTES_OF_DTYPES.get(str(given.get("dtype")), 2)
    weights = known.weight_bytes * number_bytes // 2
    if str(given.get("quantization") or "").lower().startswith("fp8"):
        weights = int(known.weight_bytes * FP8_SHARE)
    elif given.get("quantization"):
        weights = known.weight_bytes  # of a quantized checkpoint
    kv_number_bytes = 1 if str(given.get("kv_cache_dtype", "auto")).startswith("fp8") else number_bytes
    return ModelMemory(weights, known.kv_bytes_per_token * kv_number_bytes // 2, known.max_context)


@functools.cache
def _checkpoint_memory(model: str, revision: str | None) -> ModelMemory | None:
    folder, size = local_folder(model, revision), weight_bytes(model, revision)
    if folder is None or size is None:
        return None
    try:
        fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        text = fields.get("text_config") or fields
        heads = text["num_attention_heads"]
        kv_heads = text.get("num_key_value_heads") or heads
        head_size = text.get("head_dim") or text["hidden_size"] // heads
        dtype = fields.get("dtype") or fields.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype")
        if dtype in BYTES_OF_DTYPES and not fields.get("quantization_config"):
            size = size // 2  # vLLM loads weights of 32 bits with 16 bits
        per_token = kv_bytes(text["num_hidden_layers"], kv_heads, head_size)
        return ModelMemory(size, per_token, int(text["max_position_embeddings"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.debug(f"The configuration of {model} does not tell its memory ({error!r})")
        return None


# --- places -----------------------------------------------------------------------------------------------


def places(configs: Sequence[EngineConfig], gpu_count: int, launcher: Launcher) -> dict[Side, tuple[int, ...]]:
    """Return the GPUs of each engine: those that the user names, else GPUs of its own, else the same as the other
    engine's. A rank of a launcher uses one GPU for both. Raises `ArgumentError`."""
    found: dict[Side, tuple[int, ...]] = {}
    for config in configs:
        devices = given_devices(config, gpu_count, launcher)
        of_rank = devices is None and launcher.rank is not None and launcher.ranks > 1
        if of_rank:
            devices = (_gpu_of_rank(gpu_count, launcher),)
        if devices is not None:
            if worker_count(config) > len(devices):
                has = "each rank has 1" if of_rank else f"{config.side}_devices names {len(devices)}"
                raise ArgumentError(
                    f"The {config.side} engine needs {worker_count(config)} GPUs, but {has}. "
                    "Lower tensor_parallel_size, pipeline_parallel_size or data_parallel_size."
                )
            found[config.side] = devices
    for config in configs:
        if config.side in found:
            continue
        needed = worker_count(config)
        if needed > gpu_count:
            raise ArgumentError(
                f"The {config.side} engine needs {needed} GPUs, and this process can use {gpu_count}: lower "
                "tensor_parallel_size, pipeline_parallel_size or data_parallel_size."
            )
        taken = {gpu for gpus in found.values() for gpu in gpus}
        free = [gpu for gpu in range(gpu_count) if gpu not in taken]
        found[config.side] = tuple(free[:needed] if len(free) >= needed else range(needed))
    return found


def given_devices(config: EngineConfig, gpu_count: int, launcher: Launcher) -> tuple[int, ...] | None:
    """Return the GPUs that the user names (`small_devices=0` or `large_devices=[1,2]`; `device_ids` is vLLM's own name
    for it), None if the user names none. Raises `ArgumentError`."""
    side, given = config.side, config.arguments.get("devices", config.arguments.get("device_ids"))
    if given is None:
        return None
    if launcher.ranks > 1:
        raise ArgumentError(
            f"{side}_devices={given} would give the same GPUs to all {launcher.ranks} ranks on this machine. Leave it "
            "out: each rank then uses the GPU with its own number. Or start a single process."
        )
    # lmms-eval would split 0,1 at its comma, so 0;1 and 0+1 are accepted too.
    parts = given if isinstance(given, list) else str(given).replace(";", ",").replace("+", ",").split(",")
    names = [str(part).strip() for part in parts]
    if not all(name.isdigit() for name in names):
        raise ArgumentError(f"{side}_devices={given} is not a list of GPU numbers: write {side}_devices=[0,1].")
    numbers = tuple(map(int, names))
    if not gpu_count:
        raise ArgumentError(f"{side}_devices={given} names GPUs, but vLLM runs on the CPU here. Leave it out.")
    if max(numbers) >= gpu_count:
        raise ArgumentError(
            f"{side}_devices={given} names a GPU that does not exist: this process can use {gpu_count} "
            f"GPU{'s' * (gpu_count != 1)}. Give numbers from 0 to {gpu_count - 1}."
        )
    return numbers


def _gpu_of_rank(gpu_count: int, launcher: Launcher) -> int:
    """Return the GPU with the number of this rank, because each rank runs its own pair on its own GPU."""
    assert launcher.rank is not None
    if gpu_count == 1 and launcher.one_gpu_each:
        return 0  # Slurm and others let each rank see one GPU, its own, which then has the number 0
    if launcher.rank >= gpu_count:
        raise ArgumentError(
            f"{launcher.ranks} ranks run on this machine, but this rank can use only {gpu_count} "
            f"GPU{'s' * (gpu_count != 1)}. Each rank needs a GPU for its own pair. Start one rank per GPU, or let "
            "the ranks share endpoints (small=http://..., large=http://...)."
        )
    return launcher.rank


# --- the rule ---------------------------------------------------------------------------------------------


def shares(configs: Sequence[EngineConfig], gpu_bytes: Sequence[int], launcher: Launcher) -> dict[Side, Share]:
    """Return what each engine gets. `gpu_bytes`: memory of each GPU of this machine. Raises `ArgumentError`."""
    gpus = places(configs, len(gpu_bytes), launcher)
    together = len(configs) == 2 and bool(set(gpus["small"]) & set(gpus["large"]))
    given = {config.side: _number(config.arguments, "gpu_memory_utilization") or None for config in configs}
    models = {config.side: _on_one_gpu(config) for config in configs}
    found: dict[Side, Share] = {}
    for config in configs:
        side = config.side
        total = min(gpu_bytes[gpu] for gpu in gpus[side])
        others = [other for other in configs if other is not config] if together else []
        other = others[0].side if others else None
        utilization = given[side]
        if utilization is None and other is not None:
            if (given[other] or 0) >= USABLE:
                raise ArgumentError(
                    f"{other}_gpu_memory_utilization={given[other]:g} leaves no GPU memory to the {side} engine. Lower "
                    "it."
                )
            utilization = _share_of_rest(given[other], models[side], models[other], total)
        found[side] = _share(config, gpus[side], models[side], utilization, total)
    return found


def _share_of_rest(given: float | None, own: ModelMemory | None, other: ModelMemory | None, total: int) -> float:
    """Return the share of an engine that shares its GPU. `given`: the user's share of the other engine.

    An equal share if the size of a model is unknown. If the models do not fit, shares in proportion to their needs:
    vLLM then says what is missing.
    """
    if given is not None:
        return round(USABLE - given, 4)
    if own is None or other is None:
        return USABLE / 2
    needed, others = own.weight_bytes + RESERVE_BYTES, other.weight_bytes + RESERVE_BYTES
    rest = USABLE * total - needed - others
    if rest < 0:
        return round(USABLE * needed / (needed + others), 4)
    return round((needed + rest / 2) / total, 4)


def _share(
    config: EngineConfig, gpus: tuple[int, ...], model: ModelMemory | None, utilization: float | None, total: int
) -> Share:
    given = config.arguments
    if model is None:
        return Share(gpus, utilization)
    rest = (USABLE if utilization is None else utilization) * total - model.weight_bytes - RESERVE_BYTES
    cache = int(_number(given, "kv_cache_memory_bytes") or rest)
    tokens = max(0, cache) // model.kv_bytes_per_token
    own = given.get("max_model_len")
    fixed = 0 if own in (AUTOMATIC, "auto") else int(_number(given, "max_model_len"))
    wanted = fixed or min(model.max_context, MAX_CONTEXT)
    verdict: Verdict = "fits" if tokens >= wanted else "tight" if tokens >= LEAST_CONTEXT else "does not fit"
    if fixed and tokens < wanted:  # vLLM refuses it
        verdict = "does not fit"
    context = None if own is not None else wanted if verdict == "fits" else AUTOMATIC
    return Share(gpus, utilization, model.weight_bytes, cache, tokens, context, verdict)


def _on_one_gpu(config: EngineConfig) -> ModelMemory | None:
    """Return the memory that a model takes on each of the GPUs over which it is divided. None: unknown."""
    model, given = memory_of(config), config.arguments
    parts = int(_number(given, "tensor_parallel_size") or 1) * int(_number(given, "pipeline_parallel_size") or 1)
    if model is None:
        return None
    return ModelMemory(model.weight_bytes // parts, max(1, model.kv_bytes_per_token // parts), model.max_context)


def _number(given: Mapping[str, Any], name: str) -> float:
    """Return an argument as a number, 0 if it is not given or is no number: vLLM then refuses it."""
    value = given.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0


def ways_out(configs: Sequence[EngineConfig]) -> str:
    """Return what to do if the models do not fit, as sentences."""
    if given := [f"{config.side}_max_model_len" for config in configs if "max_model_len" in config.arguments]:
        return f"Lower {' and '.join(given)}, or leave it out: vLLM then chooses the longest context that fits."
    smaller = "hoose a pair of smaller models (`lmms-eval-mai pairs`)."
    if any(config.arguments.get("quantization") for config in configs):
        return f"C{smaller}"
    return f"Store the weights in 8 bits (quantization=fp8, on GPUs since Ada and Hopper), or c{smaller}"
