"""A model in this process, in Hugging Face transformers: for any device, for models that vLLM lacks, and for the
speculative decoding of Table 12.

While one batch runs, the next one is prepared. A batch has waiting calls with the same sampling. It ends when its
longest answer ends, so vLLM is faster where it runs.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from lmms_eval_mai.contract import Call, EngineConfig, Identity, Message, Prompt, Sampling, Side
from lmms_eval_mai.engines.checkpoints import argument_identity, checkpoint_identity
from lmms_eval_mai.engines.messages import space_for_thinking, without_thinking
from lmms_eval_mai.engines.special_tokens import LiteralTokenizer
from lmms_eval_mai.engines.token_texts import TokenSpan
from lmms_eval_mai.engines.transformers.batching import Request, next_batch
from lmms_eval_mai.engines.transformers.loading import device_of, free_memory
from lmms_eval_mai.engines.transformers.options import PERFORMANCE_ARGUMENTS, TransformersOptions
from lmms_eval_mai.errors import (
    ArgumentError,
    EngineCrashed,
    EngineStartError,
    EngineUnavailable,
    PromptTooLong,
    SampleError,
    UnreadableImage,
)
from lmms_eval_mai.redaction import error_text

if TYPE_CHECKING:
    from lmms_eval_mai.engines.transformers.attention import AttentionStates


class TransformersEngine:
    """One model in this process, under the contract of `Engine`."""

    def __init__(self, config: EngineConfig) -> None:
        """Raises `ArgumentError`."""
        self.side: Side = config.side
        self._config = config
        self._options = TransformersOptions(**config.arguments)
        self._loaded: Any = None
        """`loaded_model.LoadedModel`."""
        self._literal: LiteralTokenizer | None = None
        """The tokenizer of the last start. It also counts tokens while the engine restarts."""
        self._context = 0
        self._waiting: list[Request] = []
        self._batch: list[Request] = []
        """The batch that the model answers now."""
        self._arrived = asyncio.Event()
        """Set when a call waits. Each start makes a new one, because it may run on another event loop."""
        self._batch_loop: asyncio.Task[None] | None = None
        """Answers batches while the engine runs. None: the engine is not running."""
        self._threads: tuple[ThreadPoolExecutor, ...] = ()
        self._stopped = False

    @classmethod
    def from_config(cls, config: EngineConfig, other: EngineConfig | None) -> "TransformersEngine":
        return cls(config)

    def validate(self) -> None:
        try:
            import torch  # noqa: F401
            import transformers  # noqa: F401
        except ImportError as error:
            raise EngineUnavailable(
                f"engine=transformers needs torch and transformers, and their import fails ({error}). Run "
                "`lmms-eval-mai doctor`."
            ) from error
        self._options.check(self.side, self._config.model)
        obstacle = self._options.attention_obstacle(self.side, self._config.model) if self._config.attention else None
        if obstacle is not None:
            raise ArgumentError(obstacle)

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

    def open_samples(self) -> int | None:
        return None

    def layers(self) -> int | None:
        if self._options.attention_obstacle(self.side, self._config.model) is not None:
            return None
        return self._options.decoder_layers(self._config.model)

    async def start(self) -> None:
        self._stopped = False
        self._arrived = asyncio.Event()
        # The model has its own thread, so that the inputs of the next batch are built while it runs.
        self._model_thread = ThreadPoolExecutor(1, f"mai-{self.side}")
        self._input_thread = ThreadPoolExecutor(1, f"mai-{self.side}-inputs")
        self._threads = (self._model_thread, self._input_thread)
        await asyncio.get_running_loop().run_in_executor(self._model_thread, self._load)
        self._batch_loop = asyncio.create_task(self._answer_batches())

    def is_up(self) -> bool:
        return self._loaded is not None

    async def clear_caches(self) -> None:
        """Do nothing: no cache outlives a call."""

    async def close(self) -> None:
        self._stopped = True
        batch_loop, self._batch_loop = self._batch_loop, None
        if batch_loop is not None:
            batch_loop.cancel()
            await asyncio.gather(batch_loop, return_exceptions=True)
        for thread in self._threads:  # a running batch stops at its next token; a model that loads cannot be stopped
            thread.shutdown(wait=False, cancel_futures=True)
        self._threads = ()
        for request in (*self._waiting, *self._batch):
            if not request.answer.done():
                request.answer.set_exception(self._closed_error(request.prompt))
        self._waiting, self._batch = [], []
        self._loaded = None

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        submitted_at = time.perf_counter()
        model_input = await self._build_input(prompt, prompt.messages)
        if model_input.length >= self._context:
            raise PromptTooLong(
                f"{prompt.key}: the prompt has {model_input.length} tokens, and the context of {self._config.model} "
                f"has {self._context}. Raise {self.side}_max_model_len if the model can take more."
            )
        span = await self._find_text(prompt, model_input)
        answer: asyncio.Future[Call] = asyncio.get_running_loop().create_future()
        self._waiting.append(Request(prompt, sampling, model_input, answer, submitted_at, time.perf_counter(), span))
        self._arrived.set()
        return await answer

    async def attention_states(self, prompt: Prompt) -> "AttentionStates":
        """Return how each head of each layer in `prompt.attention` reads its text. For analyses; not a part of the
        contract of `Engine`. Raises a `SampleError` or `EngineCrashed`."""
        model_input = await self._build_input(prompt, prompt.messages)
        span = await self._find_text(prompt, model_input)
        if prompt.attention is None or span is None:
            raise SampleError(f"{prompt.key}: states are known only for a text of the prompt, and none was named.")
        layers = prompt.attention.layers
        states: AttentionStates = await asyncio.get_running_loop().run_in_executor(
            self._model_thread, self._loaded.states, model_input, layers, span
        )
        return states

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        rest = await self._build_input(prompt, without_thinking(prompt, thinking))
        remedy = f"Raise {self.side}_max_model_len."
        space = space_for_thinking(prompt, self._config.model, self._context, rest.length, sampling.max_tokens, remedy)
        return self._loaded.inputs.literal.end(thinking, space)

    def count_tokens(self, text: str) -> int | None:
        return None if self._literal is None else len(self._literal.tokens(text))

    def _load(self) -> None:
        """Load processor and models, in the model's thread. Raises `EngineStartError`."""
        from lmms_eval_mai.engines.transformers.loaded_model import LoadedModel

        try:
            self._loaded = LoadedModel(self._config, self._options)
        except Exception as error:
            raise EngineStartError(
                f"transformers cannot load {self.side}={self._config.model}: {error_text(error).rstrip('.')}. The "
                f"engine's arguments: {dict(self._config.arguments) or 'none'}. Check the name or path, and the "
                f"`{self.side}_<argument>` values."
            ) from error
        self._literal = self._loaded.inputs.literal
        self._context = self._loaded.context

    async def _build_input(self, prompt: Prompt, messages: tuple[Message, ...]) -> Any:
        if self._batch_loop is None:
            raise EngineCrashed(f"The {self.side} engine is not running.")
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._input_thread, self._loaded.inputs.build, messages)
        except Exception as error:
            if self._stopped:
                raise self._closed_error(prompt) from error
            raise UnreadableImage(
                f"{prompt.key}: image and text could not be prepared for {self._config.model} ({error_text(error)}). "
                "Check the document's image."
            ) from error

    async def _find_text(self, prompt: Prompt, model_input: Any) -> TokenSpan | None:
        """Return the tokens of the text to which the prompt asks for attention. None: no text. Raises `SampleError`."""
        if prompt.attention is None:
            return None
        if self._loaded is None:
            raise self._closed_error(prompt)
        if self._loaded.attention is None:
            raise SampleError(f"{prompt.key}: the {self.side} engine was not started with attention weights.")
        ids = model_input.tokens["input_ids"][0].tolist()
        find = self._loaded.attention.find_text
        return await asyncio.get_running_loop().run_in_executor(self._input_thread, find, prompt, ids)

    async def _answer_batches(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            self._waiting = [request for request in self._waiting if not request.answer.done()]
            # An assistant model drafts for one call at a time.
            batch = next_batch(self._waiting, 1 if self._loaded.assistant is not None else self._options.batch_size)
            if not batch:
                self._arrived.clear()
                continue
            self._waiting = [request for request in self._waiting if request not in batch]
            self._batch = batch
            calls = await loop.run_in_executor(self._model_thread, self._generate_or_split, batch)
            for request, call in zip(batch, calls, strict=True):
                if not request.answer.done():
                    if isinstance(call, Exception):
                        request.answer.set_exception(call)
                    else:
                        request.answer.set_result(call)

    def _generate_or_split(self, batch: list[Request]) -> list[Any]:
        """Return a call or an error per request, in the model's thread. If a batch fails, most often because memory is
        short, its requests run one by one."""
        try:
            calls: list[Any] = self._loaded.generate(batch, lambda: self._stopped)
            return calls
        except Exception as error:
            text = error_text(error)  # the error itself would keep the batch's tensors in memory
        if self._stopped:
            return [self._closed_error(request.prompt) for request in batch]
        if len(batch) > 1:
            free_memory()
            return [call for request in batch for call in self._generate_or_split([request])]
        return [
            SampleError(
                f"{batch[0].prompt.key}: transformers failed on this request to {self._config.model} ({text}). If "
                f"memory is short, lower {self.side}_batch_size."
            )
        ]

    def _closed_error(self, prompt: Prompt) -> EngineCrashed:
        return EngineCrashed(f"The {self.side} engine was closed during {prompt.key}.")
