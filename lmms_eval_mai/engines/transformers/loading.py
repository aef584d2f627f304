"""Loads a model onto its device."""

import os
from typing import Any

from lmms_eval_mai.engines.transformers.options import TransformersOptions


def device_of(options: TransformersOptions) -> str:
    """Return the device of the models: the user's, else a GPU if there is one."""
    import torch

    if options.device:
        return options.device
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"


def load_model(path: str, options: TransformersOptions, attention: bool = False, **source: Any) -> Any:
    """Return the model of a checkpoint, ready for inference. Raises transformers' errors. `attention`: whether the
    model must give attention weights."""
    from transformers import AutoModelForImageTextToText

    from lmms_eval_mai.engines.transformers.attention import register

    return AutoModelForImageTextToText.from_pretrained(
        os.path.expanduser(path),
        dtype=options.dtype,
        attn_implementation=register() if attention else options.attn_implementation,
        device_map=device_of(options),
        **source,
    ).eval()


def free_memory() -> None:
    """Give the GPU memory back that a failed batch used."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
