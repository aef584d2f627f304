"""Reads from a checkpoint how much GPU memory its model needs."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loguru import logger

from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.engines.checkpoints import local_folder, weight_bytes
from lmms_eval_mai.engines.vllm.planning.known_models import known_models
from lmms_eval_mai.engines.vllm.planning.models import FP8_SHARE, ModelSize, model_size

BYTES_OF_DTYPES = {"float32": 4, "float": 4, "half": 2, "float16": 2, "bfloat16": 2}
FP8 = ("fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel")
"""Values of `quantization` with which vLLM stores the weights in 8 bits."""
PLANNED_QUANTIZATIONS = (None, *FP8, "awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors")
"""Values of `quantization` whose weights are known: 8 bits, or as they are on the disk. Others, such as bitsandbytes,
change the weights while they load."""


def size_of(config: EngineConfig) -> ModelSize | None:
    """Return the sizes of a model with the user's types of weights and KV cache. None: unknown."""
    given, quantization = config.arguments, _quantization(config)
    if given.get("cpu_offload_gb") or quantization not in PLANNED_QUANTIZATIONS:
        return None
    # A known model needs no request to the hub.
    size = known_models().get(config.model) or checkpoint_size(config.model, given.get("revision"))
    if size is None:
        return None
    number_bytes = BYTES_OF_DTYPES.get(str(given.get("dtype")), 2)
    kv_bytes = 1 if str(given.get("kv_cache_dtype", "auto")).startswith("fp8") else number_bytes
    weights = size.weight_bytes
    if not size.quantized:
        weights = weights * number_bytes // 2
        if quantization in FP8:
            weights = int(weights * FP8_SHARE)
    return dataclasses.replace(size, weight_bytes=weights, kv_number_bytes=kv_bytes)


def why_unknown(config: EngineConfig) -> str:
    """Return why `size_of` finds no size, as a part of a sentence."""
    if config.arguments.get("cpu_offload_gb"):
        return "with cpu_offload_gb a part of its weights is in the machine's memory"
    if (quantization := _quantization(config)) not in PLANNED_QUANTIZATIONS:
        planned = ", ".join(str(name) for name in PLANNED_QUANTIZATIONS if name)
        return f"quantization={quantization} is not one of the values that can be planned: {planned}"
    if local_folder(config.model, config.arguments.get("revision")) is None:
        return "it is not on this machine. Check its name, or download it (`hf download`)"
    return "its files do not tell it, or it is of a family that cannot be planned"


def _quantization(config: EngineConfig) -> str | None:
    """Return the argument in small letters, as vLLM reads it."""
    value = config.arguments.get("quantization")
    return None if value is None else str(value).lower()


@functools.cache
def checkpoint_size(model: str, revision: str | None) -> ModelSize | None:
    """Return the sizes from the checkpoint's own files, on this machine or on the hub. None: unknown.

    The first result is kept: both engines, and every restart, get the same plan also if the hub does not answer later.
    """
    from transformers import AutoConfig

    size = weight_bytes(model, revision)
    if size is None:
        return None
    try:
        fields = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=False).to_dict()
    except Exception as error:
        logger.debug(f"The configuration of {model} cannot be read ({error})")
        return None
    if not fields.get("quantization_config"):
        size = size * 2 // BYTES_OF_DTYPES.get(_dtype(fields), 2)  # vLLM loads weights of 32 bits with 16 bits
    return model_size(fields, size, max_pixels_of(model, revision))


def _dtype(fields: Mapping[str, Any]) -> str:
    """Return the type of a checkpoint's weights, such as `bfloat16`."""
    text = fields.get("text_config") or {}
    dtype = fields.get("dtype") or fields.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype")
    return str(dtype).removeprefix("torch.")


def max_pixels_of(model: str, revision: str | None) -> int | None:
    """Return the largest number of pixels to which the checkpoint's own processor scales an image. None: unknown."""
    from transformers.utils import cached_file

    for name in ("preprocessor_config.json", "processor_config.json"):
        try:
            fields = json.loads(Path(str(cached_file(model, name, revision=revision))).read_text(encoding="utf-8"))
        except Exception as error:
            logger.debug(f"{name} of {model} cannot be read ({error})")
            continue
        fields = fields.get("image_processor") or fields
        pixels = fields.get("max_pixels") or (fields.get("size") or {}).get("longest_edge")
        if isinstance(pixels, int):
            return pixels
    return None
