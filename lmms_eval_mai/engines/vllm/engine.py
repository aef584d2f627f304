"""A persistent vLLM engine: one `AsyncLLM` whose core runs in its own process until the engine is closed.

vLLM batches all calls that are ready. Image and question come first in every prompt, so vLLM's prefix and encoder
caches serve the later calls of a sample. Chat template, image preparation and validation are vLLM's own.
"""

import asyncio
import contextlib
import copy
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

from lmms_eval_mai.contract import SIDES, Engine, EngineConfig, Message, Prompt, Reply, Sampling
from lmms_eval_mai.engines.checkpoints import checkpoint_identity
from lmms_eval_mai.engines.messages import end_of_thinking, replica_of, without_thinking
from lmms_eval_mai.engines.thinking import SWITCH, Parser, ThinkingSwitch, template_of, with_thinking, without_budget
from lmms_eval_mai.engines.vllm.configuration import ANY_CONTEXT, PERFORMANCE_ARGUMENTS, configure, start_errors
from lmms_eval_mai.engines.vllm.conversion import (
    chat_message,
    parser_of,
    sample_error,
    sampling_params,
    to_reply,
)
from lmms_eval_mai.engines.vllm.environment import engine_environment, lift_media_limit
from lmms_eval_mai.engines.vllm.processes import Processes
from lmms_eval_mai.errors import EngineCrashed, EngineNotRunning, EngineStartError, SampleError

REPLY_LIMIT_S = 60
"""Seconds that an engine may take to its first reply. A core that crashes before its reply sends none."""
USABLE_FINISH_REASONS = ("stop", "length", "repetition")
"""Finish reasons of answers that are used. vLLM also has `abort` and `error`, after which an answer is not complete."""


class VllmEngine(Engine):
    def __init__(self, config: EngineConfig, other: EngineConfig | None) -> None:
        """Build the engine's configuration in this process, where wrong arguments and missing checkpoints show early.
        `other`: the second engine of the pair, which may be of another kind."""
        self.side = config.side
        self._config = config
        self._name = f"The {config.side} engine ({config.model})"
        both = [one for one in (config, other) if one is not None and one.engine == "vllm"]
        self._pair = sorted(both, key=lambda one: SIDES.index(one.side))
        with engine_environment(self._pair) as machine:
            configuration = configure(config, self._pair, machine)
        self._thinking = ThinkingSwitch(config, template_of(config.model, config.arguments.get("revision")))
        self._parser: Parser | None = None
        """vLLM's own parser of the thinking, if the argument `reasoning_parser` names it."""
        self.description = configuration.description
        self.shares_gpu = configuration.shares_gpu
        self._requested_context = configuration.max_model_len
        self.llm: Any = None
        """The `AsyncLLM`. None: the engine is not running."""
        self._building: asyncio.Future[Any] | None = None  # the start that has begun and not ended
        self._processes: Processes | None = None  # of that start, or of the running engine
        self._context = 0
        self._replicas = 1
        self._request_numbers = itertools.count()

    @property
    def is_alive(self) -> bool:
        return self.llm is None or not self.llm.errored

    def identity(self) -> str:
        import vllm

        given = self._config.arguments
        parts = {
            "engine": f"vllm {vllm.__version__}",
            "model": self._config.model,
            "checkpoint": checkpoint_identity(self._config.model, given.get("revision")),
            "context": self._requested_context,
            "arguments": {name: value for name, value in given.items() if name not in PERFORMANCE_ARGUMENTS},
        }
        if self._thinking.is_known:  # other models keep their stored calls
            parts["thinking"] = SWITCH
        return json.dumps(parts, sort_keys=True, default=str)

    def version(self) -> str:
        import vllm

        config = self.llm.vllm_config
        runner = 2 if getattr(config, "use_v2_model_runner", False) else 1
        return (
            f"vllm {vllm.__version__}, model runner V{runner}, {str(config.model_config.dtype).removeprefix('torch.')}"
        )

    async def start(self) -> None:
        building = self._building = asyncio.ensure_future(asyncio.to_thread(self._build))
        llm, tokenizer = await asyncio.shield(building)  # if the caller is cancelled, `close` ends the start
        if self._building is not building:
            raise EngineStartError(f"{self._name} was closed during its start.")
        self._building, self.llm, self.tokenizer = None, llm, tokenizer
        self._context = llm.vllm_config.model_config.max_model_len
        self.description = self.description.replace(ANY_CONTEXT, f"context {self._context} tokens")
        parallel = llm.vllm_config.parallel_config
        only_local = parallel.local_engines_only  # the other replicas have callers of their own
        self._replicas = parallel.data_parallel_size_local if only_local else parallel.data_parallel_size
        # vLLM asks its core for the supported tasks once, at their first use. It must not happen inside a call: if the
        # core crashed before its reply, the call would never end.
        try:
            async with asyncio.timeout(REPLY_LIMIT_S):
                await llm.get_supported_tasks()
        except Exception as error:  # vLLM's EngineDeadError, or a TimeoutError
            what = f"crashed after its start, or gave no reply within {REPLY_LIMIT_S} s"
            message = f"{self._name} {what}. {self.last_error()}"
            await self.close()
            raise EngineStartError(message) from error

    def _build(self) -> tuple[Any, Any]:
        """Return the engine and a tokenizer. vLLM's own tokenizer must not be used in two threads at once."""
        with start_errors(self._config, shares_gpu=self.shares_gpu):
            with engine_environment(self._pair) as machine:
                # Anew, because vLLM writes into it.
                configuration = configure(self._config, self._pair, machine)
                self.description = configuration.description
                processes = self._processes = Processes(configuration.vllm_config)
                processes.wait_until_spawned()
            if processes.llm.exception() and (cause := processes.last_error()):
                raise RuntimeError(cause)
            llm = processes.llm.result()
            lift_media_limit()
            if name := self._config.arguments.get("reasoning_parser"):
                self._parser = parser_of(name, copy.deepcopy(llm.renderer.get_tokenizer()), self._thinking.given)
            return llm, copy.deepcopy(llm.renderer.get_tokenizer())

    def last_error(self) -> str:
        error = self._processes and self._processes.last_error()
        return f"The last error: {error}" if error else "See its log above."

    async def close(self) -> None:
        llm, self.llm = self.llm, None
        building, self._building = self._building, None
        while building is not None and not building.done() and self._processes is None:
            await asyncio.wait({building}, timeout=0.1)  # its processes begin in seconds
        if llm is not None:
            if llm.output_handler is not None:  # it would report the end of the core, which we want, as a crash
                llm.output_handler.cancel()
            llm.output_processor.propagate_error(EngineNotRunning())  # to the calls in flight
        processes, self._processes = self._processes, None
        if processes is not None:
            await asyncio.to_thread(processes.stop)
        if building is not None:
            await asyncio.wait({building})

    async def clear_caches(self) -> None:
        if self.llm is not None:
            await self.llm.reset_prefix_cache()
            await self.llm.reset_mm_cache()
            await self.llm.reset_encoder_cache()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Reply:
        if self.llm is not None and self.llm.vllm_config.reasoning_config is None:
            sampling = without_budget(sampling)
        parameters = sampling_params(sampling, prompt.logprobs, prompt.native or self._thinking.has_special_marks)
        replica = replica_of(prompt, self._replicas) if self._replicas > 1 else None
        for _ in range(2):
            requested_at, reason = time.perf_counter(), "abort"
            result: Any = None
            engine_input = await self._render(prompt, prompt.messages)
            name = f"{self.side}-{next(self._request_numbers)}"
            with self._errors(prompt) as llm:
                async for result in llm.generate(engine_input, parameters, name, data_parallel_rank=replica):
                    reason = result.outputs[0].finish_reason
            # After a refused or a cancelled call, vLLM's frontend takes an image for one that the core has, and the
            # core answers `error`. The frontend then sends the image.
            if reason != "error":
                break
        if reason == "abort":  # we abort no request: the engine's core is stopping
            raise EngineCrashed(f"{self._name} is stopping during {prompt.key}. See its log above.")
        if reason not in USABLE_FINISH_REASONS:
            raise SampleError(f"{prompt.key}: vLLM ended the request without an answer ({reason}). See its log above.")
        reply = to_reply(engine_input, result, requested_at)
        return with_thinking(reply, prompt, self.tokenizer.decode(result.prompt_token_ids[-8:]), self._parser)

    async def _render(self, prompt: Prompt, messages: tuple[Message, ...]) -> Any:
        """Return the engine's input. Raises a `SampleError` if the prompt does not fit or an image cannot be
        prepared."""
        from vllm.renderers.params import ChatParams

        given = {**self._thinking.arguments(prompt), "add_generation_prompt": True, "tokenize": False}
        template = ChatParams(chat_template_kwargs=given)
        with self._errors(prompt) as llm:
            _, (engine_input,) = await llm.renderer.render_chat_async([list(map(chat_message, messages))], template)
        return engine_input

    @contextlib.contextmanager
    def _errors(self, prompt: Prompt) -> Iterator[Any]:
        """Give the `AsyncLLM` to the block, and translate vLLM's errors. Raises `EngineNotRunning`, `EngineCrashed` or
        a `SampleError`."""
        from vllm.v1.engine.exceptions import EngineDeadError

        llm = self.llm
        if llm is None:
            raise EngineNotRunning(f"{self._name} is not running.")
        try:
            yield llm
        except Exception as error:
            if self.llm is not llm:
                raise EngineNotRunning(f"{self._name} was closed during {prompt.key}.") from error
            if isinstance(error, EngineDeadError):
                raise EngineCrashed(f"{self._name} crashed during {prompt.key}. {self.last_error()}") from error
            raise sample_error(prompt, self._config, self._context, error) from error

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        engine_input = await self._render(prompt, without_thinking(prompt, thinking))
        tokens = self._context, len(engine_input["prompt_token_ids"]), sampling.max_tokens
        # In a thread, because a long text would hold up all calls.
        return await asyncio.to_thread(end_of_thinking, prompt, thinking, self.tokenizer, *tokens)
