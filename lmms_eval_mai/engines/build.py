"""Builds an engine of any kind from its configuration, and knows the argument names of each kind."""

import contextlib
import importlib
from typing import Any

from lmms_eval_mai.contract import Engine, EngineConfig, Sampling

ENGINES: dict[str, str] = {
    "vllm": "lmms_eval_mai.engines.vllm.engine:VllmEngine",
    "transformers": "lmms_eval_mai.engines.transformers.engine:TransformersEngine",
    "openai": "lmms_eval_mai.engines.openai.engine:OpenAIEngine",
    "scripted": "lmms_eval_mai.engines.scripted.engine:recorded_engine",
}
"""Kind -> "module:name". The name is that of a class or function that takes the configurations of the engine and of the
other one (see `build`)."""

OPTIONS: dict[str, str] = {
    "transformers": "lmms_eval_mai.engines.transformers.options:TransformersOptions",
    "openai": "lmms_eval_mai.engines.openai.engine:OpenAIOptions",
    "scripted": "lmms_eval_mai.engines.scripted.engine:ScriptedOptions",
}
"""Kind -> the class of its `Arguments`. The vllm engine has the arguments of vLLM itself."""


def build(config: EngineConfig, other: EngineConfig | None = None) -> Engine:
    """Return an engine that is not started yet. Raises `ArgumentError`, `EngineUnavailable` or `EngineStartError`.

    `other`: the second engine of the pair, which may be an endpoint; None: the method has one engine.
    """
    engine: Engine = _load(ENGINES[config.engine])(config, other)
    return engine


def argument_names(kind: str) -> frozenset[str] | None:
    """Return the names of an engine's arguments. To know vLLM's, it is imported, which takes seconds. None: they are
    unknown, because vLLM is not installed."""
    if kind == "vllm":
        names: frozenset[str] | None = _load("lmms_eval_mai.engines.vllm.configuration:argument_names")()
        return names
    return frozenset(_load(OPTIONS[kind]).model_fields)


def check_sampling(kind: str, sampling: Sampling) -> None:
    """Refuse decoding arguments that an engine of this kind refuses. Raises `ArgumentError`."""
    if kind == "vllm":
        with contextlib.suppress(ImportError):  # without vLLM, the engine says so
            _load("lmms_eval_mai.engines.vllm.conversion:sampling_params")(sampling)


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
