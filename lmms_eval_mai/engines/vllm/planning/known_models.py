"""The sizes of models that can be planned without their files."""

import functools
from pathlib import Path

import yaml

from lmms_eval_mai.engines.vllm.planning.models import ModelSize, model_size


@functools.cache
def known_models() -> dict[str, ModelSize]:
    """Return the sizes of the named pairs' models by their names on the Hugging Face hub."""
    entries = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    found = {name: model_size(entry, entry["weight_bytes"]) for name, entry in entries.items()}
    return {name: size for name, size in found.items() if size is not None}
