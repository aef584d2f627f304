"""The numbers of a model's parameters by part, from its configuration: what one token costs to compute."""

import functools
from typing import Any

from loguru import logger

from lmms_eval_mai.contract import EngineConfig

LOCAL = ("vllm", "transformers")
"""Engines that have a checkpoint. The model behind an endpoint is not known."""
MERGER = ("merger", "projector", "mlp1")
"""Words in the names of parameters that turn patches into image tokens."""
VISION = ("visual", "vision")
"""Words in the names of all other parameters that work on images only: the vision tower."""
TABLES = ("embed_tokens", "pos_embed", "position_embedding")
"""Tables that are only looked up."""


def parameters(engine: EngineConfig) -> dict[str, int] | None:
    """Return the parameters that work on each token. None: there is no checkpoint, or transformers lacks its class.

    `text`: the layers of the text model. `output`: the last layer, which runs only where a token is generated.
    `vision`: the vision tower, for each patch. `patches`: patches for each image token. `merger`: the layers after it,
    for each image token. Of experts, those of one token count. Tables of embeddings are only looked up, so they are not
    counted.
    """
    if engine.engine not in LOCAL:
        return None
    given = engine.arguments
    try:
        return dict(_parameters(engine.model, given.get("revision"), bool(given.get("trust_remote_code"))))
    except Exception as error:  # any error of a configuration that transformers does not know
        logger.debug(f"The parameters of {engine.model} cannot be counted ({error})")
        return None


@functools.lru_cache(8)
def _parameters(model: str, revision: str | None, trust_remote_code: bool) -> dict[str, int]:
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code)
    with torch.device("meta"):
        network = AutoModelForImageTextToText.from_config(config, trust_remote_code=trust_remote_code)
    inputs, outputs = network.get_input_embeddings().weight, network.get_output_embeddings().weight
    text = config.get_text_config()
    experts = getattr(text, "num_experts", None) or getattr(text, "n_routed_experts", None)
    used = (getattr(text, "num_experts_per_tok", None) or 1) / experts if experts else 1
    found = {"text": 0.0, "vision": 0.0, "merger": 0.0}
    for name, weights in network.named_parameters():
        if weights is inputs or weights is outputs or any(word in name for word in TABLES):
            continue
        words = {"merger": MERGER, "vision": VISION}
        part = next((part for part in words if any(word in name for word in words[part])), "text")
        found[part] += weights.numel() * (used if ".experts." in name else 1)
    counted = {part: round(number) for part, number in found.items()}
    return {**counted, "output": outputs.numel(), "patches": _merged(config)}


def _merged(config: Any) -> int:
    """Return how many patches of an image become one image token."""
    side = getattr(config.vision_config, "spatial_merge_size", None)
    ratio = getattr(config, "downsample_ratio", None)
    return int(side**2 if side else round(1 / ratio**2) if ratio else 1)
