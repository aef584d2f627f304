"""Requests of two models of a named family, for the tests of the memory plan."""

from typing import Any

from lmms_eval_mai.engines.vllm.planning.known_models import known_models
from lmms_eval_mai.engines.vllm.planning.plan import Request

MODELS = {name.split("-")[-2]: size for name, size in known_models().items() if name.startswith("Qwen")}
"""Size such as `8B` -> the sizes of that Qwen3-VL."""


def pair(small: str, large: str, **arguments: Any) -> list[Request]:
    """Return the requests of two models that share GPU 0."""
    return [
        Request("small", small, MODELS[small], (0,), 1, **arguments),
        Request("large", large, MODELS[large], (0,), 1, **arguments),
    ]
