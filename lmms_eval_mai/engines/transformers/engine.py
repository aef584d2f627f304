"""A model in this process, in Hugging Face transformers: for any device, for models that vLLM lacks, and for
speculative decoding by an assistant model (Table 12).

What is ready is answered together: a batch is made of the waiting calls that decode alike, and the next one while it
runs. A batch is a barrier for its own calls, so vLLM is the faster engine wherever it runs.
"""

import asyncio
import dataclasses
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lmms_eval_mai.engines.base import Call, EngineConfig, Identity, Prompt, Sampling, Side
from lmms_eval_mai.engines.checkpoints import argument_identity, checkpoint_identity
from lmms_eval_mai.engines.messages import reserved_answer_tokens, without_thinking
from lmms_eval_mai.engines.transformers.generation import StopWhenCancelled, generation_config, reset_generation_config
from lmms_eval_mai.engines.transformers.options import PERFORMANCE_ARGUMENTS, TransformersOptions
from lmms_eval_mai.errors import (
    EngineCrashed,
    EngineStartError,
    EngineUnavailable,
    PromptTooLong,
    SampleError,
    UnreadableImage,
)
from lmms_eval_mai.redaction import one_line


@dataclasses.dataclass(eq=False)
class _Request:
    prompt: Prompt
    sampling: Sampling
    prepared: Any
    """`processing.ModelInput`."""
    answer: "asyncio.Future[Call]"
    asked: float
    ready: float


class TransformersEngine:
    """One model in this process, under the contract of `Engine`."""

    def __init__(self, config: EngineConfig) -> None:
        """Raises `ArgumentError`."""
        self.side: Side = config.side
        self._config = config
        self._options = TransformersOptions(**config.arguments)
        self._model: Any = None
        self._assistant: Any = None
        self._preparer: Any = None
        self._waiting: list[_Request] = []
        self._answering: list[_Request] = []
        self._threads: tuple[ThreadPoolExecutor, ...] = ()
        self._arrived = asyncio.Event()
        self._batches: asyncio.Task[None] | None = None
        self._stopped = False

    @classmethod
    def from_config(cls, config: EngineConfig, other: EngineConfig | None) -> "TransformersEngine":
        return cls(config)

    def validate(self) -> None:
        try:
            import torch  # noqa: F401
            import transformers  # noqa: F401
        except ImportError as error:
            raise EngineUnavailable(f"engine=transformers does not import here ({error}).") from error
        self._options.check(self.side, self._config.model)

    def describe(self) -> str:
        calls = f"{self._options.batch_size} calls a batch"
        if self._options.assistant_model is not None:
            calls = f"one call at a time, for which {self._options.assistant_model} drafts"
        return f"on {self._device()}, dtype {self._options.dtype}, {calls}"

    def _device(self) -> str:
        """Each rank of a launcher has its own GPU."""
        import torch

        return self._options.device or (
            f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
        )

    def identity(self) -> Identity:
        import transformers

        model, given = self._config.model, self._config.arguments
        return {
            "engine": f"transformers {transformers.__version__}",
            "model": model,
            "checkpoint": checkpoint_identity(model, self._options.revision),
            "arguments": argument_identity(given, PERFORMANCE_ARGUMENTS),
        }

    async def start(self) -> None:
        self._stopped = False
        # One thread for the model, one for preparation, so that pictures are ready before the model is.
        self._model_thread = ThreadPoolExecutor(1, f"mai-{self.side}")
        self._preparing_thread = ThreadPoolExecutor(1, f"mai-{self.side}-prepare")
        self._threads = (self._model_thread, self._preparing_thread)
        await asyncio.get_running_loop().run_in_executor(self._model_thread, self._load)
        self._batches = asyncio.create_task(self._answer_batches())

    def _load(self) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        from lmms_eval_mai.engines.transformers.inputs import InputBuilder

        options = self._options
        shared = {"revision": options.revision, "trust_remote_code": options.trust_remote_code}
        loading = {
            "dtype": options.dtype,
            "attn_implementation": options.attn_implementation,
            "device_map": self._device(),
        }

        def model(path: str, **more: Any) -> Any:
            return AutoModelForImageTextToText.from_pretrained(os.path.expanduser(path), **loading, **more).eval()

        try:
            processor = AutoProcessor.from_pretrained(os.path.expanduser(self._config.model), **shared)
            self._preparer = InputBuilder(processor)
            self._model = model(self._config.model, **shared)
            if options.assistant_model is not None:
                self._assistant = model(options.assistant_model)
        except Exception as error:
            raise EngineStartError(
                f"transformers cannot load {self.side}={self._config.model}: {_reason(error)} Its arguments here: "
                f"{dict(self._config.arguments) or 'none'}."
            ) from error
        self._ends = reset_generation_config(self._model)
        made_for = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        self._context = int(options.max_model_len or made_for or 1 << 30)

    async def close(self) -> None:
        self._stopped = True
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.cancel()
            await asyncio.gather(batches, return_exceptions=True)
        for thread in self._threads:  # a model that answers sees that it is stopped; one that loads cannot be stopped
            thread.shutdown(wait=False, cancel_futures=True)
        self._threads = ()
        for one in (*self._waiting, *self._answering):
            if not one.answer.done():
                one.answer.set_exception(EngineCrashed(f"The {self.side} engine was stopped during {one.prompt.key}."))
        self._waiting, self._answering = [], []
        self._model = self._assistant = self._preparer = None

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        asked = time.perf_counter()
        prepared = await self._prepared(prompt, prompt.messages)
        if prepared.length >= self._context:
            raise PromptTooLong(
                f"{prompt.key}: the prompt has {prepared.length} tokens, and the context of {self._config.model} is "
                f"{self._context}. Raise {self.side}_max_model_len if the model can take more."
            )
        answer: asyncio.Future[Call] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Request(prompt, sampling, prepared, answer, asked, time.perf_counter()))
        self._arrived.set()
        return await answer

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        alone = await self._prepared(prompt, without_thinking(prompt, thinking))
        room = self._context - alone.length - reserved_answer_tokens(sampling.max_tokens)
        if room <= 0:
            raise PromptTooLong(
                f"{prompt.key}: image and question leave no room for thinking in the context of {self._config.model}, "
                f"{self._context} tokens. Raise {self.side}_max_model_len."
            )
        return self._preparer.plain.end(thinking, room)

    async def _prepared(self, prompt: Prompt, messages: Any) -> Any:
        if self._batches is None:
            raise EngineCrashed(f"The {self.side} engine is not running.")
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._preparing_thread, self._preparer.prepare, messages)
        except Exception as error:
            raise UnreadableImage(
                f"{prompt.key}: image and text could not be prepared for {self._config.model} ({_reason(error)}). "
                "Check the document's image."
            ) from error

    async def _answer_batches(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            if not batch:
                self._arrived.clear()
                continue
            self._answering = batch
            calls = await loop.run_in_executor(self._model_thread, self._generate_or_split, batch)
            for one, call in zip(batch, calls, strict=True):
                if not one.answer.done():
                    one.answer.set_exception(call) if isinstance(call, Exception) else one.answer.set_result(call)

    def _next_batch(self) -> list[_Request]:
        """The call that has waited longest, and others that can be answered with it."""
        self._waiting = [one for one in self._waiting if not one.answer.done()]
        if not self._waiting:
            return []
        first = self._waiting[0]
        like = [one for one in self._waiting
                if one.sampling == first.sampling and one.prepared.shape() == first.prepared.shape()]  # fmt: skip
        # An assistant drafts for one at a time; a seed is one call's.
        alone = self._assistant is not None or first.sampling.seed is not None
        batch = like[: 1 if alone else self._options.batch_size]
        self._waiting = [one for one in self._waiting if one not in batch]
        return batch

    def _generate_or_split(self, batch: list[_Request]) -> list[Any]:
        """In the model's thread. Calls that fail together, for want of memory above all, are asked one by one."""
        try:
            return self._answers(batch)
        except Exception as error:
            why = _reason(error)  # not the error: its traceback holds what the batch had in memory
        if self._stopped:
            return [EngineCrashed(f"The {self.side} engine was stopped during {one.prompt.key}.") for one in batch]
        if len(batch) > 1:
            _free_memory()
            return [call for one in batch for call in self._generate_or_split([one])]
        return [_failure(batch[0], self._config.model, why)]

    def _answers(self, batch: list[_Request]) -> list[Call]:
        import torch

        from lmms_eval_mai.engines.transformers.inputs import batch_of

        began = time.perf_counter()
        tokenizer, sampling = self._preparer.tokenizer, batch[0].sampling
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        inputs = batch_of([one.prepared for one in batch], pad)
        length, room = inputs["input_ids"].shape[1], self._context - min(one.prepared.length for one in batch)
        inputs = {
            name: t.to(self._model.device, self._model.dtype if t.is_floating_point() else t.dtype)
            for name, t in inputs.items()
        }
        watch = StopWhenCancelled([one.answer for one in batch], lambda: self._stopped)
        ends = set() if sampling.ignore_eos else self._ends
        config = generation_config(sampling, min(sampling.max_tokens, room), pad, ends)
        if sampling.seed is not None:
            torch.manual_seed(sampling.seed)
        with torch.inference_mode():
            made = self._model.generate(
                **inputs, generation_config=config, stopping_criteria=[watch], assistant_model=self._assistant
            )
        ended = time.perf_counter()
        return [
            _call(
                one, tokenizer, row[: self._context - one.prepared.length], ends, (began, watch.first or ended, ended)
            )
            for one, row in zip(batch, made[:, length:].tolist(), strict=True)
        ]


def _call(one: _Request, tokenizer: Any, row: list[int], ends: set[int], times: tuple[float, float, float]) -> Call:
    began, first, ended = times
    last = next((place for place, token in enumerate(row) if token in ends), None)
    tokens = row if last is None else row[: last + 1]
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    return Call(
        key=one.prompt.key,
        text=text if last is not None else text.rstrip("\ufffd"),  # of a character cut in two, nothing
        finish_reason="length" if last is None else "stop",
        prompt_tokens=one.prepared.length,
        cached_tokens=0,
        output_tokens=len(tokens),
        queued_s=began - one.ready,
        ttft_s=first - one.asked,
        total_s=ended - one.asked,
    )


def _free_memory() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _failure(one: _Request, model: str, why: str) -> SampleError:
    return SampleError(
        f"{one.prompt.key}: transformers failed on this request to {model} ({why}). If memory is short, "
        f"lower {one.prompt.key.side}_batch_size."
    )


def _reason(error: Exception) -> str:
    return one_line(str(error)) or type(error).__name__
