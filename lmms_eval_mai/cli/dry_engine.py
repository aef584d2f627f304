"""The engine of `lmms-eval-mai ask --dry-run`: takes the place of a model, and pretends to give attention weights."""

from collections.abc import Callable
from dataclasses import replace

from lmms_eval_mai.contract import Call, EngineConfig, Prompt, Sampling, TokenWeights
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine
from lmms_eval_mai.engines.transformers.options import TransformersOptions
from lmms_eval_mai.run.pair import GIVES_ATTENTION

LAYERS = 10_000
"""More than any model has, so that every layer exists."""


class DryEngine(ScriptedEngine):
    """A scripted engine for which a whole text is one token."""

    def __init__(self, config: EngineConfig, script: Callable[[Prompt], Answer]) -> None:
        """`config`: the engine whose place it takes. Raises `ArgumentError` if its arguments exclude the attention
        weights that it must give."""
        super().__init__(config.side, script)
        self._kind = config.engine
        if config.attention and config.engine == GIVES_ATTENTION:
            TransformersOptions(**config.arguments).check_attention(config.side)

    def layers(self) -> int | None:
        return LAYERS if self._kind == GIVES_ATTENTION else None

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        call = await super().generate(prompt, sampling)
        if prompt.attention is None:
            return call
        text = call.text if prompt.attention.text is None else prompt.attention.text
        return replace(call, attention=TokenWeights((text,), ((1.0,),)))
