"""A model in this process, in Hugging Face transformers: for any device, for models that vLLM lacks, and for the
speculative decoding of Table 12.

A batch ends when its longest answer ends (`running_model.py`), so vLLM is faster where it runs.
"""

from typing import TYPE_CHECKING

from lmms_eval_mai.contract import Call, EngineConfig, Identity, Prompt, Sampling, Side
from lmms_eval_mai.engines.checkpoints import argument_identity, checkpoint_identity
from lmms_eval_mai.engines.messages import LiteralTokenizer
from lmms_eval_mai.engines.transformers.options import PERFORMANCE_ARGUMENTS, TransformersOptions, device_of
from lmms_eval_mai.engines.transformers.running_model import RunningModel
from lmms_eval_mai.errors import ArgumentError, EngineNotRunning

if TYPE_CHECKING:
    from lmms_eval_mai.engines.transformers.attention import AttentionStates


class TransformersEngine:
    """One model in this process, under the contract of `Engine`."""

    def __init__(self, config: EngineConfig) -> None:
        """Raises `ArgumentError`."""
        self.side: Side = config.side
        self._config = config
        self._options = TransformersOptions(**config.arguments)
        self._running: RunningModel | None = None
        """None: the engine was never started, or it is closed."""
        self._literal: LiteralTokenizer | None = None
        """The tokenizer of the last start. It also counts tokens while the engine restarts."""

    @classmethod
    def from_config(cls, config: EngineConfig, other: EngineConfig | None) -> "TransformersEngine":
        return cls(config)

    def validate(self) -> None:
        self._options.check(self.side, self._config.model, self._config.attention)

    def describe(self) -> str:
        calls = f"up to {self._options.batch_size} calls per batch"
        if self._options.assistant_model is not None:
            calls = f"one call at a time, {self._options.assistant_model} drafts tokens"
        return f"on {device_of(self._options)}, dtype {self._options.dtype}, {calls}"

    def starts_alone(self) -> bool:
        return True  # transformers sets the default dtype of the whole process while it loads a model

    def identity(self) -> Identity:
        import transformers

        return {
            "engine": f"transformers {transformers.__version__}",
            "model": self._config.model,
            "checkpoint": checkpoint_identity(self._config.model, self._options.revision),
            "arguments": argument_identity(self._config.arguments, PERFORMANCE_ARGUMENTS),
        }

    def layers(self) -> int | None:
        try:
            config = self._options.check(self.side, self._config.model, attention=True)
        except ArgumentError:
            return None
        depth: int | None = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
        return depth

    async def start(self) -> None:
        running = self._running = RunningModel(self._config, self._options)
        self._literal = (await running.load()).inputs.literal

    def is_up(self) -> bool:
        return self._running is not None and self._running.is_up()

    async def clear_caches(self) -> None:
        """Do nothing: no cache outlives a call."""

    async def close(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.close()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        return await self._started().generate(prompt, sampling)

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        return await self._started().truncate_thinking(prompt, thinking, sampling)

    async def attention_states(self, prompt: Prompt) -> "AttentionStates":
        """Return how each head of each layer in `prompt.attention` reads its text. For analyses; not a part of the
        contract of `Engine`. Raises a `SampleError` or `EngineNotRunning`."""
        return await self._started().states(prompt)

    def count_tokens(self, text: str) -> int | None:
        return None if self._literal is None else len(self._literal.tokens(text))

    def _started(self) -> RunningModel:
        if self._running is None or not self._running.is_up():
            raise EngineNotRunning(f"The {self.side} engine is not running.")
        return self._running
