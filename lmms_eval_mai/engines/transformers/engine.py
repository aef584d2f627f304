"""A model in this process, in Hugging Face transformers: for any device, for models that vLLM lacks, and for the
speculative decoding of Table 12.

While one batch runs, the next one is prepared. A batch has waiting calls with the same sampling. It ends when its
longest answer ends, so vLLM is faster where it runs.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from lmms_eval_mai.contract import Call, EngineConfig, Identity, Prompt, Sampling, Side
from lmms_eval_mai.engines.checkpoints import argument_identity, checkpoint_identity
from lmms_eval_mai.engines.messages import LiteralTokenizer
from lmms_eval_mai.engines.transformers.batching import Request, next_batch
from lmms_eval_mai.engines.transformers.options import PERFORMANCE_ARGUMENTS, TransformersOptions, device_of
from lmms_eval_mai.errors import (
    ArgumentError,
    EngineNotRunning,
    EngineStartError,
    MaiError,
    SampleError,
    UnreadableImage,
)
from lmms_eval_mai.redaction import error_text

if TYPE_CHECKING:
    from lmms_eval_mai.engines.transformers.attention import AttentionStates
    from lmms_eval_mai.engines.transformers.loaded_model import LoadedModel

R = TypeVar("R")


class TransformersEngine:
    """One model in this process, under the contract of `Engine`."""

    def __init__(self, config: EngineConfig, other: EngineConfig | None = None) -> None:
        """Raises `ArgumentError`."""
        self.side: Side = config.side
        self._config = config
        self._options = TransformersOptions(**config.arguments)
        self._running: RunningModel | None = None
        """None: the engine was never started, or it is closed."""
        self._literal: LiteralTokenizer | None = None
        """The tokenizer of the last start. It also counts tokens while the engine restarts."""

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

    def _started(self) -> "RunningModel":
        if self._running is None or not self._running.is_up():
            raise EngineNotRunning(f"The {self.side} engine is not running.")
        return self._running


class RunningModel:
    """A model from its start until it is closed, its two threads, and the calls that wait for it. Belongs to one event
    loop, and is not started again."""

    def __init__(self, config: EngineConfig, options: TransformersOptions) -> None:
        self._config, self._options = config, options
        # The model has its own thread, so that the inputs of the next batch are built while it runs.
        self._model_thread = ThreadPoolExecutor(1, f"mai-{config.side}")
        self._input_thread = ThreadPoolExecutor(1, f"mai-{config.side}-inputs")
        self._closed = asyncio.get_running_loop().create_future()
        """Done when the model is closed. Everything that waits for a thread waits for this too."""
        self._loaded: LoadedModel | None = None
        self._batch_loop: asyncio.Task[None] | None = None
        self._waiting: list[Request] = []
        """The calls without an answer, also those of the batch that the model answers now."""
        self._arrived = asyncio.Event()
        """Set when a call waits."""

    def is_up(self) -> bool:
        return self._loaded is not None

    async def load(self) -> "LoadedModel":
        """Load processor and models. Raises `EngineStartError`, also if the model is closed during its start."""
        try:
            loaded = await self._in_thread(self._model_thread, "its start", _load, self._config, self._options)
        except EngineNotRunning as error:
            raise EngineStartError(str(error)) from None
        except Exception as error:
            raise EngineStartError(
                f"transformers cannot load {self._config.side}={self._config.model}: {error_text(error).rstrip('.')}. "
                f"The engine's arguments: {dict(self._config.arguments) or 'none'}. Check the name or path, and the "
                f"`{self._config.side}_<argument>` values."
            ) from error
        self._loaded = loaded
        self._batch_loop = asyncio.create_task(self._answer_batches(loaded))
        return loaded

    async def close(self) -> None:
        """Fail all calls. A running batch ends at its next token. A model that loads cannot be stopped, but it is
        dropped when it is loaded."""
        self._closed.set_result(None)
        if self._batch_loop is not None:
            self._batch_loop.cancel()
            await asyncio.gather(self._batch_loop, return_exceptions=True)
        for thread in (self._model_thread, self._input_thread):
            thread.shutdown(wait=False, cancel_futures=True)
        for request in self._waiting:
            if not request.answer.done():
                request.answer.set_exception(self._closed_error(request.prompt.key))
        self._waiting = []
        self._loaded = None

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        """Return the model's answer. Raises a `SampleError` or `EngineNotRunning`."""
        submitted_at = time.perf_counter()
        loaded = self._running(prompt)
        model_input, span = await self._prepared(prompt, loaded.prepare)
        answer: asyncio.Future[Call] = asyncio.get_running_loop().create_future()
        request = Request(prompt, sampling, model_input, span, answer, submitted_at, time.perf_counter())
        self._waiting.append(request)
        self._arrived.set()
        return await answer

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        loaded = self._running(prompt)
        return await self._prepared(prompt, loaded.truncate_thinking, thinking, sampling)

    async def states(self, prompt: Prompt) -> "AttentionStates":
        """Return how each head reads the text of a prompt. Raises a `SampleError` or `EngineNotRunning`."""
        loaded = self._running(prompt)
        model_input, span = await self._prepared(prompt, loaded.prepare)
        return await self._in_thread(self._model_thread, prompt.key, loaded.states, prompt, model_input, span)

    def _running(self, prompt: Prompt) -> "LoadedModel":
        if self._loaded is None:
            raise self._closed_error(prompt.key)
        return self._loaded

    async def _prepared(self, prompt: Prompt, prepare: Callable[..., R], *more: Any) -> R:
        """Return what a function makes of a prompt in the input thread. `more`: its further arguments."""
        try:
            return await self._in_thread(self._input_thread, prompt.key, prepare, prompt, *more)
        except MaiError:
            raise
        except Exception as error:
            raise UnreadableImage(
                f"{prompt.key}: image and text could not be prepared for {self._config.model} ({error_text(error)}). "
                "Check the document's image."
            ) from error

    async def _in_thread(
        self, thread: ThreadPoolExecutor, what: object, function: Callable[..., R], *arguments: Any
    ) -> R:
        """Return the result of a function that one of the threads runs. `what`: what it is a part of. Raises
        `EngineNotRunning` if the model is closed first."""
        result = asyncio.get_running_loop().run_in_executor(thread, function, *arguments)
        try:
            await asyncio.wait([result, self._closed], return_when=asyncio.FIRST_COMPLETED)
            if self._closed.done():
                raise self._closed_error(what)
            return result.result()
        finally:
            result.cancel()  # also if the call was cancelled
            del result  # an error that is kept would keep this frame, and with it a model that was just loaded

    async def _answer_batches(self, loaded: "LoadedModel") -> None:
        while True:
            self._waiting = [request for request in self._waiting if not request.answer.done()]
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            # An assistant model drafts for one call at a time.
            batch = next_batch(self._waiting, 1 if loaded.assistant is not None else self._options.batch_size)
            calls = await self._in_thread(self._model_thread, "a batch", self._generate_or_split, loaded, batch)
            for request, call in zip(batch, calls, strict=True):
                if not request.answer.done():
                    if isinstance(call, Exception):
                        request.answer.set_exception(call)
                    else:
                        request.answer.set_result(call)

    def _generate_or_split(self, loaded: "LoadedModel", batch: list[Request]) -> list[Any]:
        """Return a call or an error per request, in the model's thread. If a batch fails, most often because memory is
        short, its requests run one by one."""
        try:
            return list(loaded.generate(batch))
        except Exception as error:
            text = error_text(error)  # the error itself would keep the batch's tensors in memory
        if len(batch) > 1:
            import torch

            torch.cuda.empty_cache()
            return [call for request in batch for call in self._generate_or_split(loaded, [request])]
        return [
            SampleError(
                f"{batch[0].prompt.key}: transformers failed on this request to {self._config.model} ({text}). If "
                f"memory is short, lower {self._config.side}_batch_size."
            )
        ]

    def _closed_error(self, what: object) -> EngineNotRunning:
        return EngineNotRunning(f"The {self._config.side} engine was closed during {what}.")


def _load(config: EngineConfig, options: TransformersOptions) -> "LoadedModel":
    from lmms_eval_mai.engines.transformers.loaded_model import LoadedModel

    return LoadedModel(config, options)
