"""A model in this process, in Hugging Face transformers: for any device, for models that vLLM lacks, and for the
speculative decoding of Table 12.

While one batch runs, the next one is prepared. A batch has waiting calls with the same sampling. It ends when its
longest answer ends, so vLLM is faster where it runs.
"""

import asyncio
import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lmms_eval_mai.engines.base import Call, EngineConfig, Identity, Message, Prompt, Sampling, Side
from lmms_eval_mai.engines.checkpoints import argument_identity, checkpoint_identity
from lmms_eval_mai.engines.logs import transformers_without_progress_bars
from lmms_eval_mai.engines.messages import space_for_thinking, without_thinking
from lmms_eval_mai.engines.special_tokens import LiteralTokenizer
from lmms_eval_mai.engines.transformers.assistant import DraftCounts, assisted_call, set_draft_length
from lmms_eval_mai.engines.transformers.batching import BatchTimes, Request, next_batch, to_call
from lmms_eval_mai.engines.transformers.generation import (
    StopWhenCancelled,
    generation_config,
    hide_assisted_decoding_warnings,
    penalties,
    reset_generation_config,
    stop_at_texts,
)
from lmms_eval_mai.engines.transformers.loading import device_of, free_memory, load_model
from lmms_eval_mai.engines.transformers.options import PERFORMANCE_ARGUMENTS, TransformersOptions
from lmms_eval_mai.errors import (
    EngineCrashed,
    EngineStartError,
    EngineUnavailable,
    PromptTooLong,
    SampleError,
    UnreadableImage,
)
from lmms_eval_mai.redaction import error_text


class TransformersEngine:
    """One model in this process, under the contract of `Engine`."""

    def __init__(self, config: EngineConfig) -> None:
        """Raises `ArgumentError`."""
        self.side: Side = config.side
        self._config = config
        self._options = TransformersOptions(**config.arguments)
        self._model: Any = None
        self._assistant: Any = None
        self._inputs: Any = None
        """`inputs.InputBuilder`."""
        self._literal: LiteralTokenizer | None = None
        """The tokenizer of the last start. It also counts tokens while the engine restarts."""
        self._context = 0
        self._eos_token_ids: set[int] = set()
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
        return None

    async def start(self) -> None:
        self._stopped = False
        self._arrived = asyncio.Event()
        # The model has its own thread, so that the inputs of the next batch are built while it runs.
        self._model_thread = ThreadPoolExecutor(1, f"mai-{self.side}")
        self._input_thread = ThreadPoolExecutor(1, f"mai-{self.side}-inputs")
        self._threads = (self._model_thread, self._input_thread)
        await asyncio.get_running_loop().run_in_executor(self._model_thread, self._load)
        self._batch_loop = asyncio.create_task(self._answer_batches())

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
        self._model = self._assistant = self._inputs = None

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        submitted_at = time.perf_counter()
        model_input = await self._build_input(prompt, prompt.messages)
        if model_input.length >= self._context:
            raise PromptTooLong(
                f"{prompt.key}: the prompt has {model_input.length} tokens, and the context of {self._config.model} "
                f"has {self._context}. Raise {self.side}_max_model_len if the model can take more."
            )
        answer: asyncio.Future[Call] = asyncio.get_running_loop().create_future()
        self._waiting.append(Request(prompt, sampling, model_input, answer, submitted_at, time.perf_counter()))
        self._arrived.set()
        return await answer

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        rest = await self._build_input(prompt, without_thinking(prompt, thinking))
        remedy = f"Raise {self.side}_max_model_len."
        space = space_for_thinking(prompt, self._config.model, self._context, rest.length, sampling.max_tokens, remedy)
        return self._inputs.literal.end(thinking, space)

    def count_tokens(self, text: str) -> int | None:
        return None if self._literal is None else len(self._literal.tokens(text))

    def _load(self) -> None:
        """Load processor and models, in the model's thread. Raises `EngineStartError`."""
        from transformers import AutoProcessor

        from lmms_eval_mai.engines.transformers.inputs import InputBuilder

        options, path = self._options, os.path.expanduser(self._config.model)
        source = {"revision": options.revision, "trust_remote_code": options.trust_remote_code}
        try:
            self._inputs = InputBuilder(AutoProcessor.from_pretrained(path, **source))
            with transformers_without_progress_bars():
                self._model = load_model(path, options, **source)
                if options.assistant_model is not None:
                    hide_assisted_decoding_warnings()
                    self._assistant = load_model(options.assistant_model, options)
                    set_draft_length(self._assistant, options.num_assistant_tokens)
        except Exception as error:
            raise EngineStartError(
                f"transformers cannot load {self.side}={self._config.model}: {error_text(error).rstrip('.')}. The "
                f"engine's arguments: {dict(self._config.arguments) or 'none'}. Check the name or path, and the "
                f"`{self.side}_<argument>` values."
            ) from error
        self._literal = self._inputs.literal
        self._eos_token_ids = reset_generation_config(self._model)
        limit = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        self._context = int(options.max_model_len or limit or 1 << 30)

    async def _build_input(self, prompt: Prompt, messages: tuple[Message, ...]) -> Any:
        if self._batch_loop is None:
            raise EngineCrashed(f"The {self.side} engine is not running.")
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._input_thread, self._inputs.build, messages)
        except Exception as error:
            if self._stopped:
                raise self._closed_error(prompt) from error
            raise UnreadableImage(
                f"{prompt.key}: image and text could not be prepared for {self._config.model} ({error_text(error)}). "
                "Check the document's image."
            ) from error

    async def _answer_batches(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            self._waiting = [request for request in self._waiting if not request.answer.done()]
            # An assistant model drafts for one call at a time.
            batch = next_batch(self._waiting, 1 if self._assistant is not None else self._options.batch_size)
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
            return self._generate(batch)
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

    def _generate(self, batch: list[Request]) -> list[Call]:
        """Return one call per request, in the model's thread.

        `generate` has one token limit for the whole batch: the space that the context leaves after the shortest prompt.
        The rows of longer prompts are cut afterwards, to the space after their own prompt.
        """
        import torch

        from lmms_eval_mai.engines.transformers.inputs import batch_of

        began_at = time.perf_counter()
        tokenizer, sampling = self._inputs.tokenizer, batch[0].sampling
        pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        inputs = {
            name: tensor.to(self._model.device, self._model.dtype if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in batch_of([request.input for request in batch], pad_id).items()
        }
        longest_answer = self._context - min(request.input.length for request in batch)
        eos_token_ids = set() if sampling.ignore_eos else self._eos_token_ids
        stopper = StopWhenCancelled([request.answer for request in batch], lambda: self._stopped)
        prompt_length = inputs["input_ids"].shape[1]
        if sampling.seed is not None:
            torch.manual_seed(sampling.seed)
        drafts: contextlib.AbstractContextManager[DraftCounts | None] = contextlib.nullcontext()
        if self._assistant is not None:
            drafts = assisted_call(self._model, self._assistant, prompt_length, batch[0].input.others)
        with torch.inference_mode(), drafts as counts:
            output = self._model.generate(
                **inputs,
                generation_config=generation_config(
                    sampling, min(sampling.max_tokens, longest_answer), pad_id, eos_token_ids
                ),
                logits_processor=penalties(sampling, prompt_length),
                stopping_criteria=[stopper, *stop_at_texts(sampling, tokenizer, prompt_length)],
                assistant_model=self._assistant,
            )
        ended_at = time.perf_counter()
        times = BatchTimes(began_at, stopper.first_token_at or ended_at, ended_at)
        rows = output[:, prompt_length:].tolist()
        calls = [
            to_call(request, row[: self._context - request.input.length], tokenizer, eos_token_ids, times)
            for request, row in zip(batch, rows, strict=True)
        ]
        return calls if counts is None else [counts.added_to(calls[0], len(rows[0]))]

    def _closed_error(self, prompt: Prompt) -> EngineCrashed:
        return EngineCrashed(f"The {self.side} engine was closed during {prompt.key}.")
