"""A persistent vLLM engine: one `AsyncLLM` whose core runs in its own process until the engine is closed.

vLLM batches all calls that are ready. Image and question come first in every prompt, so vLLM's prefix and encoder
caches serve the later calls of a sample. Chat template, image preparation and validation are vLLM's own
(`renderer.py`). Written against vLLM 0.32, and imported only if this engine is used.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from lmms_eval_mai.contract import Call, EngineConfig, Identity, Message, Prompt, Sampling, Side
from lmms_eval_mai.engines.cancellation import wait_for
from lmms_eval_mai.engines.checkpoints import argument_identity, checkpoint_identity
from lmms_eval_mai.engines.messages import space_for_thinking, without_thinking
from lmms_eval_mai.engines.special_tokens import LiteralTokenizer
from lmms_eval_mai.engines.vllm import arguments as vllm_arguments
from lmms_eval_mai.engines.vllm.attention import AttentionReader
from lmms_eval_mai.engines.vllm.configuration import Configuration, configure
from lmms_eval_mai.engines.vllm.detokenizer import Detokenizer
from lmms_eval_mai.engines.vllm.errors import sample_error
from lmms_eval_mai.engines.vllm.internals import fail_requests
from lmms_eval_mai.engines.vllm.outputs import PreparedPrompt, to_call
from lmms_eval_mai.engines.vllm.processes import exit_if_script_runs_again
from lmms_eval_mai.engines.vllm.replicas import replica_count, replica_of
from lmms_eval_mai.engines.vllm.starting import Start, Started
from lmms_eval_mai.engines.vllm.watchdog import WATCHDOG
from lmms_eval_mai.errors import EngineCrashed, EngineStartError, MaiError, SampleError

REPLY_LIMIT_S = 60
"""Seconds that an engine may take to reply to anything but a call. A core that crashes before its reply sends none."""
USABLE_FINISH_REASONS = ("stop", "length", "repetition")
"""Finish reasons of answers that are used. vLLM also has `abort` and `error`, after which an answer is not complete."""


class VllmEngine:
    """One model in vLLM, under the contract of `Engine`."""

    def __init__(self, config: EngineConfig, other: EngineConfig | None) -> None:
        self.side: Side = config.side
        self._config = config
        self._other = other
        self._configuration: Configuration | None = None
        self._description = ""
        self._starts_alone = True
        self._planned_identity: dict[str, Any] = {}
        self._open_samples: int | None = None
        self._layers: int | None = None
        self._start: Start | None = None
        self._started: Started | None = None
        self._literal: LiteralTokenizer | None = None
        """The tokenizer of the last start. It also counts tokens while the engine restarts."""
        self._context = 0
        self._replicas = 1
        self._detokenizer: Detokenizer
        self._attention: AttentionReader | None = None
        self._watched = False
        self._request_numbers = itertools.count()

    @classmethod
    def from_config(cls, config: EngineConfig, other: EngineConfig | None) -> "VllmEngine":
        return cls(config, other)

    def validate(self) -> None:
        """Build the engine's configuration in this process, where wrong arguments and missing checkpoints show
        early."""
        exit_if_script_runs_again()
        self._configuration = configure(self._config, self._other)
        self._description = self._configuration.description
        self._starts_alone = self._configuration.starts_alone
        self._planned_identity = self._configuration.planned_identity
        self._open_samples = self._configuration.open_samples
        self._layers = self._configuration.layers

    def describe(self) -> str:
        return self._description

    def starts_alone(self) -> bool:
        return self._starts_alone

    def open_samples(self) -> int | None:
        return self._open_samples

    def layers(self) -> int | None:
        return self._layers

    def identity(self) -> Identity:
        import vllm

        given = self._config.arguments
        return {
            "engine": f"vllm {vllm.__version__}",
            "model": self._config.model,
            "checkpoint": checkpoint_identity(self._config.model, given.get("revision")),
            "arguments": argument_identity({**self._planned_identity, **given}, vllm_arguments.PERFORMANCE_ARGUMENTS),
        }

    async def start(self) -> None:
        if self._configuration is None:
            await asyncio.to_thread(self.validate)
        assert self._configuration is not None
        if not self._watched:
            self._watched = True
            WATCHDOG.open()
        self._start = Start(self._config, self._configuration)
        self._started = await self._start.finish()
        self._start = None
        llm = self._started.llm
        self._literal = self._started.renderer.literal
        self._context = llm.vllm_config.model_config.max_model_len
        self._replicas = replica_count(llm.vllm_config.parallel_config)
        self._detokenizer = Detokenizer(llm.renderer.get_tokenizer())
        # vLLM asks its core for the supported tasks once, at their first use. It must not happen inside a call: if the
        # core crashed before its reply, the call would never end.
        await self._within_start_limit(llm.get_supported_tasks())
        if self._layers is not None:
            self._attention = AttentionReader(llm)
            await self._within_start_limit(self._attention.start(self._config, self._layers))

    async def _within_start_limit(self, reply: Awaitable[Any]) -> None:
        try:
            await wait_for(REPLY_LIMIT_S, reply)
        except EngineStartError:
            await self.close()
            raise
        except Exception as error:  # vLLM's EngineDeadError, if the core crashed
            await self.close()
            reason = f"did not reply within {REPLY_LIMIT_S} s" if isinstance(error, TimeoutError) else "crashed"
            raise EngineStartError(
                f"The {self.side} engine ({self._config.model}) {reason} after its start. Start again with --verbosity "
                "DEBUG, which shows the engine's log."
            ) from error

    async def close(self) -> None:
        started, self._started, self._attention = self._started, None, None
        self._configuration = None  # vLLM writes into it while the engine starts, so the next start needs a new one
        start, self._start = self._start, None
        if start is not None:
            await start.abort()
        if started is not None:
            if started.llm.output_handler is not None:
                started.llm.output_handler.cancel()  # it would report the end of the engine's process as a crash
            try:
                await asyncio.to_thread(started.stop)
            finally:
                fail_requests(started.llm)
        if self._watched:
            self._watched = False
            WATCHDOG.close()

    def is_up(self) -> bool:
        return self._started is not None and not self._started.llm.errored

    async def sleep(self) -> None:
        """Move the weights to the machine's memory and free the caches (sleep level 1). No call may be in flight."""
        await self._control("sleep", lambda llm: llm.sleep(level=1))

    async def wake(self) -> None:
        """Move the weights back to the GPU and allocate the caches again."""
        await self._control("wake", lambda llm: llm.wake_up())

    async def _control(self, name: str, call: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        llm = self._running().llm
        try:
            return await call(llm)
        except Exception as error:
            raise EngineCrashed(
                f"The {self.side} engine ({self._config.model}) failed to {name} ({error}). See its log above."
            ) from error

    async def clear_caches(self) -> None:
        """Empty the prefix cache and the image caches, so that the next call is timed like a first one. No call may be
        in flight; raises `MaiError` if one is."""
        for _ in range(50):  # the engine releases a finished or cancelled call one step later
            if await self._control("clear its caches", lambda llm: wait_for(REPLY_LIMIT_S, llm.reset_prefix_cache())):
                break
            await asyncio.sleep(0.1)
        else:
            raise MaiError(
                f"The prefix cache of the {self.side} engine cannot be cleared, because a call is still running. Wait "
                "until the call ends."
            )
        await self._control("clear its caches", lambda llm: wait_for(REPLY_LIMIT_S, llm.reset_encoder_cache()))
        await self._running().renderer.clear_caches()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        return await self.submit(prompt, await self.prepare(prompt), sampling)

    async def prepare(self, prompt: Prompt) -> PreparedPrompt:
        """Return the input of vLLM's engine. The engine has no part in it, so it may sleep."""
        started_at = time.perf_counter()
        engine_input = await self._render(prompt, prompt.messages)
        return PreparedPrompt(engine_input, time.perf_counter() - started_at)

    async def submit(self, prompt: Prompt, prepared: PreparedPrompt, sampling: Sampling) -> Call:
        llm = self._running().llm
        submitted_at = time.perf_counter() - prepared.seconds
        params = vllm_arguments.sampling_params(sampling, detokenize=not self._detokenizer.decodes_at_once)
        name = f"{self.side}-{next(self._request_numbers)}"
        if prompt.attention is None:
            result = await self._answer(prompt, prepared, params, name)
            return to_call(prompt, prepared, result, self._detokenizer.text(result, params), submitted_at)
        reader = self._attention
        assert reader is not None, "EngineConfig.attention must be set"
        asked = reader.ask(name, prompt, prepared.engine_input["prompt_token_ids"])
        params.extra_args = asked.extra_args()
        try:
            result = await self._answer(prompt, prepared, params, name)
            text = self._detokenizer.text(result, params)
            weights = await reader.take(asked, prompt.key, result, text)
        except BaseException as error:  # also if the call is cancelled
            reader.forget(asked)
            if isinstance(error, MaiError) or not isinstance(error, Exception):
                raise
            raise self._error(prompt, llm, error) from error
        return replace(to_call(prompt, prepared, result, text, submitted_at), attention=weights)

    async def _answer(self, prompt: Prompt, prepared: PreparedPrompt, params: Any, name: str) -> Any:
        """Return vLLM's output of a request. Raises `SampleError` or `EngineCrashed`. `name`: the request's name."""
        llm = self._running().llm
        result = None
        try:
            async for output in llm.generate(
                prepared.engine_input, params, name, data_parallel_rank=replica_of(prompt.key, self._replicas)
            ):
                result = output
        except Exception as error:
            raise self._error(prompt, llm, error) from error
        finish_reason = result.outputs[0].finish_reason if result else "abort"
        if finish_reason == "abort":  # we abort no request: the engine's core is stopping
            raise EngineCrashed(
                f"The {self.side} engine ({self._config.model}) is stopping during {prompt.key}. See its log above."
            )
        if finish_reason not in USABLE_FINISH_REASONS:
            raise SampleError(
                f"{prompt.key}: vLLM ended the request ({finish_reason}) without a complete answer. See its log above."
            )
        return result

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        literal = self._running().renderer.literal
        engine_input = await self._render(prompt, without_thinking(prompt, thinking))
        remedy, other_tokens = f"Raise {self.side}_max_model_len.", len(engine_input["prompt_token_ids"])
        space = space_for_thinking(prompt, self._config.model, self._context, other_tokens, sampling.max_tokens, remedy)
        return literal.end(thinking, space)

    def count_tokens(self, text: str) -> int | None:
        return None if self._literal is None else len(self._literal.tokens(text))

    async def _render(self, prompt: Prompt, messages: tuple[Message, ...]) -> Any:
        running = self._running()
        try:
            return await running.renderer.render(messages)
        except Exception as error:
            raise self._error(prompt, running.llm, error) from error

    def _running(self) -> Started:
        """Return the engine. Raises `EngineCrashed` if it does not run."""
        if self._started is None:
            raise EngineCrashed(f"The {self.side} engine is not running.")
        return self._started

    def _error(self, prompt: Prompt, llm: Any, error: Exception) -> MaiError:
        """Return the error of a call to `llm`."""
        from vllm.v1.engine.exceptions import EngineDeadError

        closed = self._started is None or self._started.llm is not llm
        if closed or isinstance(error, EngineDeadError):
            return EngineCrashed(
                f"The {self.side} engine ({self._config.model}) crashed during {prompt.key}. See its log above."
            )
        return sample_error(prompt, self._config, self._context, error)
