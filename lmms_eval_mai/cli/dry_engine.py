"""The engine of `lmms-eval-mai ask --dry-run`: takes the place of a model, and pretends to give attention weights."""

from dataclasses import replace

from lmms_eval_mai.engines.base import Call, Prompt, Sampling, TokenWeights
from lmms_eval_mai.engines.scripted.engine import ScriptedEngine

LAYERS = 10_000
"""More than any model has, so that every layer exists."""


class DryEngine(ScriptedEngine):
    """A scripted engine for which a whole text is one token."""

    def layers(self) -> int | None:
        return LAYERS

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        call = await super().generate(prompt, sampling)
        if prompt.attention is None:
            return call
        text = call.text if prompt.attention.text is None else prompt.attention.text
        return replace(call, attention=TokenWeights((text,), ((1.0,),)))
