"""Builds an engine of any kind from its configuration, and knows the argument names of each kind."""

import dataclasses
import importlib
from typing import Any

from lmms_eval_mai.contract import Engine, EngineConfig
from lmms_eval_mai.engines.transformers.options import TransformersOptions
from lmms_eval_mai.engines.vllm import attention
from lmms_eval_mai.engines.vllm.argument_names import OWN_ARGUMENTS, vllm_argument_names
from lmms_eval_mai.engines.vllm.host_memory import SLEEP_ARGUMENTS, available_bytes, check_host_memory
from lmms_eval_mai.engines.vllm.placement import Launcher
from lmms_eval_mai.errors import ArgumentError

ENGINES: dict[str, str] = {
    "vllm": "lmms_eval_mai.engines.vllm.engine:VllmEngine",
    "transformers": "lmms_eval_mai.engines.transformers.engine:TransformersEngine",
    "openai": "lmms_eval_mai.engines.openai.engine:OpenAIEngine",
    "scripted": "lmms_eval_mai.engines.scripted.engine:ScriptedEngine",
}
"""Kind -> "module:class". The class has a classmethod `from_config(config, other)`."""

OPTIONS: dict[str, str] = {
    "transformers": "lmms_eval_mai.engines.transformers.options:TransformersOptions",
    "openai": "lmms_eval_mai.engines.openai.options:OpenAIOptions",
    "scripted": "lmms_eval_mai.engines.scripted.engine:ScriptedOptions",
}
"""Kind -> the dataclass of its arguments. The vllm engine has the arguments of vLLM itself."""


def build(config: EngineConfig, other: EngineConfig | None = None, sleep: bool = False) -> Engine:
    """Return an engine that is not started yet. Raises `ArgumentError`.

    `other`: the second engine of the pair, if it runs on this machine. `sleep`: the two engines take turns on one GPU,
    and one of them sleeps (`time_sharing.py`).
    """
    if sleep:
        configs = (config,) if other is None else (config, other)
        check_host_memory(configs, available_bytes(), Launcher.from_environment().ranks)
        config = _that_sleeps(config)
        other = None if other is None else _that_sleeps(other)
    if other is not None and other.engine != "vllm":
        other = None
    engine: Engine = _load(ENGINES[config.engine]).from_config(config, other)
    return engine


def check_attention_arguments(config: EngineConfig) -> None:
    """Refuse arguments with which an engine cannot give attention weights, as far as this is known without its
    checkpoint. Raises `ArgumentError`."""
    if config.engine == "vllm":
        attention.check_arguments(config)
    elif config.engine == "transformers":
        obstacle = TransformersOptions(**config.arguments).argument_obstacle(config.side)
        if obstacle is not None:
            raise ArgumentError(obstacle)


def _that_sleeps(config: EngineConfig) -> EngineConfig:
    return dataclasses.replace(config, arguments={**SLEEP_ARGUMENTS, **config.arguments, "enable_sleep_mode": True})


def argument_names(kind: str) -> frozenset[str] | None:
    """Return the names of an engine's arguments without importing its library.

    None: the names are unknown, because vLLM is not installed or its source does not look as expected. Names are then
    not checked.
    """
    if kind != "vllm":
        return frozenset(field.name for field in dataclasses.fields(_load(OPTIONS[kind])))
    names = vllm_argument_names()
    return None if names is None else (names | OWN_ARGUMENTS) - {"model"}


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
