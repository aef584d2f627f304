"""Builds an engine from its configuration, and knows the names of its arguments."""

import contextlib
import importlib
from typing import Any

from lmms_eval_mai.contract import Engine, EngineConfig, Sampling

ENGINES: dict[str, str] = {
    "vllm": "lmms_eval_mai.engines.vllm.engine:VllmEngine",
    "transformers": "lmms_eval_mai.engines.transformers.engine:TransformersEngine",
    "openai": "lmms_eval_mai.engines.openai.engine:OpenAIEngine",
    "scripted": "lmms_eval_mai.engines.scripted:recorded_engine",
}
"""Engine -> "module:name" of the class or function that takes its configuration and that of the other engine of the
pair."""

OPTIONS: dict[str, str] = {
    "transformers": "lmms_eval_mai.engines.transformers.options:TransformersOptions",
    "openai": "lmms_eval_mai.engines.openai.engine:OpenAIOptions",
    "scripted": "lmms_eval_mai.engines.scripted:ScriptedOptions",
}
"""Engine -> the class of its `Arguments`. The vllm engine has the arguments of vLLM itself."""


def build(config: EngineConfig, other: EngineConfig | None = None) -> Engine:
    """Return an engine that is not started yet. Raises `ArgumentError`, `EngineUnavailable` or `EngineStartError`.

    `other`: the second engine of the pair, which may be an endpoint; None: the method has one engine.
    """
    engine: Engine = _load(ENGINES[config.engine])(config, other)
    return engine


def argument_names(engine: str) -> frozenset[str] | None:
    """Return the names of an engine's arguments. To know vLLM's, it is imported, which takes seconds. None: they are
    unknown, because vLLM is not installed."""
    if engine == "vllm":
        names: frozenset[str] | None = _load("lmms_eval_mai.engines.vllm.configuration:argument_names")()
        return names
    return frozenset(_load(OPTIONS[engine]).model_fields)


def check_sampling(engine: str, sampling: Sampling) -> None:
    """Raise `ArgumentError` for decoding arguments that vLLM refuses. The other engines refuse none before a call."""
    if engine == "vllm":
        with contextlib.suppress(ImportError):  # without vLLM, the engine says so
            _load("lmms_eval_mai.engines.vllm.conversion:sampling_params")(sampling)


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
