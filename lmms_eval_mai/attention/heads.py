"""Reads single heads of the large model with the transformers engine, whichever engine wrote the thinking.

The other engines return the mean over heads only.
"""

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from lmms_eval_mai.attention.documents import LayerStates
from lmms_eval_mai.contract import AttentionRequest, CallKey, EngineConfig, Identity, Prompt
from lmms_eval_mai.engines.transformers.engine import TransformersEngine
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper import prompts
from lmms_eval_mai.paper.sample import Sample
from lmms_eval_mai.paper.sample_run import with_stage_text
from lmms_eval_mai.run.event_loop import LoopThread

if TYPE_CHECKING:
    from lmms_eval_mai.engines.transformers.attention import LayerAttention

SHARED_ARGUMENTS = ("dtype", "revision", "trust_remote_code", "max_model_len")
"""Arguments of vLLM that the transformers engine has too."""


class HeadReader:
    """The large model in transformers, as a context manager."""

    def __init__(self, config: EngineConfig) -> None:
        """`config`: the large engine of the run. Raises `ArgumentError` if it has no checkpoint, or if an argument
        cannot work."""
        if config.engine not in ("vllm", "transformers"):
            raise ArgumentError(
                f"The figures and the corollary need single heads of the large model, and large_engine={config.engine} "
                "has no checkpoint. Choose vllm or transformers, or only --table9."
            )
        arguments = config.arguments
        if config.engine == "vllm":
            arguments = {name: value for name, value in arguments.items() if name in SHARED_ARGUMENTS}
        own = EngineConfig("large", "transformers", config.model, arguments, attention=True)
        self._engine = TransformersEngine.from_config(own, None)
        self._engine.validate()
        self._layers = tuple(range(1, (self._engine.layers() or 0) + 1))
        self._loop: LoopThread | None = None

    def identity(self) -> Identity:
        """Return everything that can change a state."""
        return self._engine.identity()

    def __enter__(self) -> Self:
        self._loop = LoopThread()
        try:
            self._loop.run(self._engine.start())
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def read(self, sample: Sample, thinking: str) -> tuple[tuple[str, ...], list[LayerStates]]:
        """Return the tokens of a thinking, and the states of each layer when the large model reads it in the Reason
        Transfer prompt. Raises a `SampleError`, or `EngineCrashed` outside of the block."""
        assert self._loop is not None
        before, after = prompts.transfer_parts(sample.benchmark.name, sample.kind)
        messages = with_stage_text(sample, before, thinking, after)
        key = CallKey(sample.task, sample.doc_id, sample.repeat, "large", "score")
        prompt = Prompt(messages, key, AttentionRequest(self._layers, thinking))
        states = self._loop.run(self._engine.attention_states(prompt))
        return states.tokens, [layer_states(layer) for layer in states.layers]

    def _close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                loop.run(self._engine.close())
            finally:
                loop.close()


def layer_states(layer: "LayerAttention") -> LayerStates:
    """Return the states of all heads of a layer. Heads that share keys and values get the same ones."""
    query, keys, values = (np.asarray(one, dtype=np.float64) for one in (layer.query, layer.keys, layer.values))
    heads_of_each = len(query) // len(keys)
    keys, values = (np.repeat(one, heads_of_each, axis=0) for one in (keys, values))
    scores: Any = np.einsum("hd,htd->ht", query, keys) * layer.scaling
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return LayerStates(
        weights=np.asarray(layer.weights, dtype=np.float64),
        own_weights=powers / powers.sum(axis=-1, keepdims=True),
        values=values,
        keys=keys,
    )
