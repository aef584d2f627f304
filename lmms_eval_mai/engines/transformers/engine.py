"""A model in this process, in Hugging Face transformers: for any device, and for models that vLLM lacks.

One thread does all the work of an engine: it prepares and answers one call after the other, so vLLM is faster.
"""

import asyncio
import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import transformers

from lmms_eval_mai.contract import Engine, EngineConfig, Prompt, Reply, Sampling
from lmms_eval_mai.engines.arguments import read
from lmms_eval_mai.engines.checkpoints import checkpoint_identity
from lmms_eval_mai.engines.thinking import SWITCH, ThinkingSwitch, template_of, without_budget
from lmms_eval_mai.engines.transformers.generation import Steps
from lmms_eval_mai.engines.transformers.model import LoadedModel
from lmms_eval_mai.engines.transformers.options import TransformersOptions, device_of
from lmms_eval_mai.errors import EngineNotRunning, EngineStartError
from lmms_eval_mai.redaction import error_text, redacted

R = TypeVar("R")


class TransformersEngine(Engine):
    """One model in this process. Belongs to the event loop on which it was started."""

    def __init__(self, config: EngineConfig, other: EngineConfig | None = None) -> None:
        """Raises `ArgumentError`."""
        self.side = config.side
        self._config = config
        self._options = read(TransformersOptions, config.arguments, f"{config.side}_")
        self._options.check(config.side, config.model)
        self._thinking = ThinkingSwitch(config, template_of(config.model, self._options.revision))
        self.description = f"on {device_of(self._options)}, dtype {self._options.dtype}, one call at a time"
        self._model: LoadedModel | None = None  # None: never started, starting, or closed
        self._thread: ThreadPoolExecutor | None = None
        self._closed: asyncio.Future[None] | None = None
        """Done when the engine is closed. Everything that waits for the thread waits for this too."""

    def identity(self) -> str:
        checkpoint = checkpoint_identity(self._config.model, self._options.revision)
        unset = set() if self._thinking.given else {"chat_template_kwargs"}
        arguments = self._options.model_dump_json(exclude={*self._options.without_effect(), *unset})
        switch = f" {SWITCH}" if self._thinking.is_known else ""  # other models keep their stored calls
        return f"transformers {transformers.__version__} {self._config.model} {checkpoint} {arguments}{switch}"

    def version(self) -> str:
        return f"transformers {transformers.__version__}, {self._options.dtype}"

    async def start(self) -> None:
        self._closed = asyncio.get_running_loop().create_future()
        self._thread = ThreadPoolExecutor(1, f"mai-{self.side}")
        try:
            model = await self._in_thread("its start", LoadedModel, self._config, self._options, self._thinking)
        except Exception as error:
            raise EngineStartError(
                f"transformers cannot load {self.side}={self._config.model}: {error_text(error).rstrip('.')}. The "
                f"engine's arguments: {redacted(self._config.arguments) or 'none'}. Check the name or path, and the "
                f"`{self.side}_<argument>` values."
            ) from error
        self.tokenizer = copy.deepcopy(model.tokenizer)  # not used by two threads at once
        self._model = model

    async def close(self) -> None:
        """Fail all calls. The running one ends at its next token. A model that loads cannot be stopped, but it is
        dropped when it is loaded."""
        if self._closed is None or self._thread is None or self._closed.done():
            return
        self._closed.set_result(None)
        self._model = None
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Reply:
        model, steps = self._started(), Steps(sampling.repetition_detection)
        try:
            return await self._in_thread(prompt.key, model.answer, prompt, without_budget(sampling), steps)
        finally:
            steps.must_end = True  # nobody waits for a call that is cancelled or whose engine is closed

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        return await self._in_thread(prompt.key, self._started().truncate_thinking, prompt, thinking, sampling)

    def _started(self) -> LoadedModel:
        if self._model is None:
            raise EngineNotRunning(f"The {self.side} engine is not running.")
        return self._model

    async def _in_thread(self, what: object, function: Callable[..., R], *arguments: Any) -> R:
        """Return the result of a function that the thread runs. `what`: what it is a part of. Raises
        `EngineNotRunning` if the engine is closed first."""
        assert self._thread is not None and self._closed is not None
        closed = self._closed
        result: asyncio.Future[R] = asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
        waited: list[asyncio.Future[Any]] = [result, closed]
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                raise EngineNotRunning(f"The {self.side} engine was closed during {what}.")
            return result.result()
        finally:
            result.cancel()  # also if the call was cancelled
            del result, waited  # an error that is kept would keep this frame, and with it a model that was just loaded
