"""How an engine is built from its configuration."""

import dataclasses
from pathlib import Path

from lmms_eval_mai.engines.base import Engine
from lmms_eval_mai.engines.scripted import RecordedScript, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.run.config import Config, SideConfig, check_names


def build(config: Config, side: SideConfig) -> Engine:
    """An engine that is not started yet. Raises `ArgumentError`."""
    if side.engine == "scripted":
        return _scripted(side)
    if side.engine == "openai":
        from lmms_eval_mai.engines.openai.engine import OpenAIEngine

        return OpenAIEngine(side)
    if side.engine == "transformers":
        from lmms_eval_mai.engines.transformers.engine import TransformersEngine

        return TransformersEngine(side)
    from lmms_eval_mai.engines.vllm.engine import VllmEngine

    if config.sleep:  # alone on its card, in turn
        return VllmEngine(dataclasses.replace(side, arguments={**side.arguments, "enable_sleep_mode": True}), None)
    partner = next((other for other in config.sides() if other is not side and other.engine == "vllm"), None)
    return VllmEngine(side, partner)


def _scripted(side: SideConfig) -> ScriptedEngine:
    check_names(side.side, side.arguments, {f.name for f in dataclasses.fields(ScriptedOptions)}, "scripted")
    try:
        options = ScriptedOptions(**side.arguments)
    except TypeError as error:
        raise ArgumentError(
            f"An argument of the scripted {side.side} engine is no number: {side.arguments}."
        ) from error
    return ScriptedEngine(side.side, RecordedScript(Path(side.model).expanduser()), options)
