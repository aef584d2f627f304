"""The sizes of a model that decide how much GPU memory it needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BYTES_PER_NUMBER = 2
"""bfloat16 and float16."""
FP8_SHARE = 0.6
"""Size of weights in 8 bits relative to 16 bits. Embeddings and output layer, up to a seventh, stay in 16 bits. So does
the vision tower of some models."""


@dataclass(frozen=True)
class VisionSize:
    """The sizes of a vision tower."""

    hidden_size: int
    intermediate_size: int
    patches_per_token: int
    """Image patches that become one token of the prompt."""
    outputs_per_token: int
    """Vectors that the language model gets per image token: 1, and one per DeepStack layer of Qwen3-VL."""
    max_image_tokens: int
    """Tokens of the largest image. vLLM measures the memory with such images."""
    pixels_per_token: int | None
    """None: the model has no limit of pixels that `max_pixels` lowers. InternVL divides images into tiles. The image
    processors of other models than Qwen's ignore `max_pixels`."""


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a vision-language model."""

    weight_bytes: int
    layers: int
    kv_heads: int
    head_size: int
    hidden_size: int
    vocabulary: int
    max_context: int
    vision: VisionSize
    kv_number_bytes: int = BYTES_PER_NUMBER
    """Bytes of one number in the KV cache."""
    heads: int | None = None
    """Attention heads. Tensor parallelism must divide them; a key-value head may be on several GPUs. None: unknown."""
    quantized: bool = False
    """Whether the checkpoint's weights have fewer than 16 bits."""

    def kv_bytes_per_token(self, tensor_parallel: int = 1, stages: int = 1) -> int:
        """Return the bytes of one token in the KV cache of one GPU. `stages`: pipeline stages."""
        layers = -(-self.layers // stages)
        heads = max(1, self.kv_heads // tensor_parallel)
        keys_and_values = 2
        return keys_and_values * layers * heads * self.head_size * self.kv_number_bytes


QWEN_MAX_PIXELS = 16_777_216
"""Limit of Qwen3-VL's image processor: 16,384 tokens."""


def model_size(config: Mapping[str, Any], weight_bytes: int, max_pixels: int | None = None) -> ModelSize | None:
    """Return the sizes from a checkpoint's `config.json`. None: the family of the model is unknown.

    `max_pixels`: the limit of the checkpoint's own image processor. None: `QWEN_MAX_PIXELS`.
    Known are Qwen2.5-VL, Qwen3-VL and InternVL in Hugging Face's format, and models with the same fields.
    """
    text, vision = config.get("text_config"), config.get("vision_config")
    if not isinstance(text, Mapping) or not isinstance(vision, Mapping):
        return None
    try:
        heads = text["num_attention_heads"]
        return ModelSize(
            weight_bytes=weight_bytes,
            layers=text["num_hidden_layers"],
            kv_heads=text.get("num_key_value_heads") or heads,
            head_size=text.get("head_dim") or text["hidden_size"] // heads,
            hidden_size=text["hidden_size"],
            vocabulary=text["vocab_size"],
            max_context=text["max_position_embeddings"],
            heads=heads,
            quantized=bool(config.get("quantization_config")),
            vision=_qwen_vision(config, vision, max_pixels)
            if "spatial_merge_size" in vision
            else _internvl_vision(config, vision),
        )
    except (KeyError, TypeError):
        return None


def _qwen_vision(config: Mapping[str, Any], vision: Mapping[str, Any], max_pixels: int | None) -> VisionSize:
    merge, patch = vision["spatial_merge_size"], vision["patch_size"]
    pixels_per_token = (merge * patch) ** 2
    is_qwen = str(config.get("model_type", "qwen")).startswith("qwen")
    return VisionSize(
        hidden_size=vision["hidden_size"],
        intermediate_size=vision["intermediate_size"],
        patches_per_token=merge**2,
        outputs_per_token=1 + len(vision.get("deepstack_visual_indexes") or ()),
        max_image_tokens=max(1, (max_pixels or QWEN_MAX_PIXELS) // pixels_per_token),
        pixels_per_token=pixels_per_token if is_qwen else None,
    )


def _internvl_vision(config: Mapping[str, Any], vision: Mapping[str, Any]) -> VisionSize:
    """InternVL divides an image into at most 12 tiles of 256 tokens and adds a small copy of the whole image."""
    tile_tokens, max_tiles = config["image_seq_length"], 13
    side, patch = (
        value[0] if isinstance(value, list) else value for value in (vision["image_size"], vision["patch_size"])
    )
    return VisionSize(
        hidden_size=vision["hidden_size"],
        intermediate_size=vision["intermediate_size"],
        patches_per_token=(side // patch) ** 2 // tile_tokens,
        outputs_per_token=1,
        max_image_tokens=tile_tokens * max_tiles,
        pixels_per_token=None,
    )
