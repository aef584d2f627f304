"""A persistent vLLM engine: one `AsyncLLM` whose core runs in its own process until the engine is closed.

vLLM batches all calls that are ready. Image and question come first in every prompt, so vLLM's prefix and encoder
caches serve the later calls of a sample. Chat template, image preparation and validation are vLLM's own
(`renderer.py`). Imported only if this engine is used.
"""

import asyncio
import itertools
import time
from typing import Any

from loguru import logger

from lmms_eval_mai.contract import Call, EngineConfig, Identity, Message, Prompt, Sampling, Side
from lmms_eval_mai.engines.checkpoints import argument_identity, checkpoint_identity
from lmms_eval_mai.engines.messages import LiteralTokenizer, space_for_thinking, without_thinking
from lmms_eval_mai.engines.vllm import internals
from lmms_eval_mai.engines.vllm.configuration import PERFORMANCE_ARGUMENTS, Configuration, configure
from lmms_eval_mai.engines.vllm.errors import sample_error
from lmms_eval_mai.engines.vllm.outputs import replica_of, sampling_params, to_call
from lmms_eval_mai.engines.vllm.starting import Start, Started, exit_if_script_runs_again, refuse_script_from_stdin
from lmms_eval_mai.errors import EngineCrashed, EngineNotRunning, EngineStartError, MaiError, SampleError

REPLY_LIMIT_S = 60
"""Seconds that an engine may take to reply to anything but a call. A core that crashes before its reply sends none."""
USABLE_FINISH_REASONS = ("stop", "length", "repetition")
"""Finish reasons of answers that are used. vLLM also has `abort` and `error`, after which an answer is not complete."""


class VllmEngine:
    """One model in vLLM, under the contract of `Engine`."""

    def __init__(self, config: EngineConfig, other: EngineConfig | None) -> None:
        self.side: Side = config.side
        self._config = config
        self._other = other if other is not None and other.engine == "vllm" else None
        self._configuration: Configuration | None = None
        self._description = ""
        self._starts_alone = True
        self._automatic_context = False
        self._start: Start | None = None
        self.started: Started | None = None
        self._literal: LiteralTokenizer | None = None
        """The tokenizer of the last start. It also counts tokens while the engine restarts."""
        self._context = 0
        self._replicas = 1
        self._calls: set[asyncio.Timeout] = set()
        """The calls in flight. `close` ends them at once: vLLM ends those that it still has only if it notices a
        crash before it is stopped."""
        self._request_numbers = itertools.count()

    def validate(self) -> None:
        """Build the engine's configuration in this process, where wrong arguments and missing checkpoints show
        early."""
        exit_if_script_runs_again()
        refuse_script_from_stdin()
        self._configuration = configure(self._config, self._other)
        self._description = self._configuration.description
        self._starts_alone = self._configuration.starts_alone
        self._automatic_context = self._configuration.automatic_context

    def describe(self) -> str:
        return self._description

    def starts_alone(self) -> bool:
        return self._starts_alone

    def layers(self) -> int | None:
        return None  # vLLM gives no attention weights

    def identity(self) -> Identity:
        import vllm

        given = self._config.arguments
        chosen = {"max_model_len": "auto"} if self._automatic_context else {}
        return {
            "engine": f"vllm {vllm.__version__}",
            "model": self._config.model,
            "checkpoint": checkpoint_identity(self._config.model, given.get("revision")),
            "arguments": argument_identity({**chosen, **given}, PERFORMANCE_ARGUMENTS),
        }

    async def start(self) -> None:
        if self._configuration is None:
            await asyncio.to_thread(self.validate)
        assert self._configuration is not None
        start = self._start = Start(self._config, self._configuration)
        started = await start.finish()
        if self._start is not start:
            raise EngineStartError(f"The {self.side} engine was closed during its start.")
        self._start, self.started = None, started
        llm = started.llm
        self._literal = started.renderer.literal
        self._context = llm.vllm_config.model_config.max_model_len
        parallel = llm.vllm_config.parallel_config  # the replicas among which the caller of vLLM's engine can choose
        self._replicas = (
            parallel.data_parallel_size_local if parallel.local_engines_only else parallel.data_parallel_size
        )
        if self._automatic_context:
            logger.warning(
                f"mai_cascade: vLLM chose a context of {self._context:,} tokens for {self.side}={self._config.model}: "
                "more does not fit into the GPU's memory."
            )
            self._description = self._description.replace(
                "a context that vLLM chooses", f"context {self._context} tokens, chosen by vLLM"
            )
        # vLLM asks its core for the supported tasks once, at their first use. It must not happen inside a call: if the
        # core crashed before its reply, the call would never end.
        try:
            async with asyncio.timeout(REPLY_LIMIT_S):
                await llm.get_supported_tasks()
        except Exception as error:  # vLLM's EngineDeadError, if the core crashed
            await self.close()
            reason = f"did not reply within {REPLY_LIMIT_S} s" if isinstance(error, TimeoutError) else "crashed"
            raise EngineStartError(
                f"The {self.side} engine ({self._config.model}) {reason} after its start. Start again with --verbosity "
                "DEBUG, which shows the engine's log."
            ) from error

    async def close(self) -> None:
        started, self.started = self.started, None
        self._configuration = None  # vLLM writes into it while the engine starts, so the next start needs a new one
        start, self._start = self._start, None
        if start is not None:
            await start.abort()
        calls, self._calls = self._calls, set()
        for call in calls:
            call.reschedule(asyncio.get_running_loop().time())
        if started is not None:
            internals.stop_reading(started.llm)
            await asyncio.to_thread(started.stop)

    def is_up(self) -> bool:
        return self.started is not None and not self.started.llm.errored

    async def clear_caches(self) -> None:
        """Empty the prefix cache and the image caches, so that the next call is timed like a first one. No call may be
        in flight; raises `MaiError` if one is."""
        started = self._running()
        try:
            async with asyncio.timeout(REPLY_LIMIT_S):
                for _ in range(50):  # the engine releases a finished or cancelled call one step later
                    if await started.llm.reset_prefix_cache():
                        break
                    await asyncio.sleep(0.1)
                else:
                    raise MaiError(
                        f"The prefix cache of the {self.side} engine cannot be cleared, because a call is still "
                        "running. Wait until the call ends."
                    )
                await started.llm.reset_encoder_cache()
        except MaiError:
            raise
        except Exception as error:
            raise EngineCrashed(
                f"The {self.side} engine ({self._config.model}) failed to clear its caches ({error}). See its log "
                "above."
            ) from error
        await started.renderer.clear_caches()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        requested_at = time.perf_counter()
        engine_input = await self._render(prompt, prompt.messages)
        result = await self._answer(prompt, engine_input, sampling)
        return to_call(prompt, engine_input, result, requested_at)

    async def _answer(self, prompt: Prompt, engine_input: Any, sampling: Sampling) -> Any:
        llm = self._running().llm
        name = f"{self.side}-{next(self._request_numbers)}"
        result = None
        try:
            async with asyncio.timeout(None) as in_flight:
                self._calls.add(in_flight)
                try:
                    async for output in llm.generate(
                        engine_input,
                        sampling_params(sampling),
                        name,
                        data_parallel_rank=replica_of(prompt.key, self._replicas),
                    ):
                        result = output
                finally:
                    self._calls.discard(in_flight)
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
        return await asyncio.to_thread(literal.end, thinking, space)  # a long text would hold up all other calls

    def count_tokens(self, text: str) -> int | None:
        return None if self._literal is None else len(self._literal.tokens(text))

    async def _render(self, prompt: Prompt, messages: tuple[Message, ...]) -> Any:
        running = self._running()
        try:
            return await running.renderer.render(messages)
        except Exception as error:
            raise self._error(prompt, running.llm, error) from error

    def _running(self) -> Started:
        if self.started is None:
            raise EngineNotRunning(f"The {self.side} engine is not running.")
        return self.started

    def _error(self, prompt: Prompt, llm: Any, error: Exception) -> MaiError:
        from vllm.v1.engine.exceptions import EngineDeadError

        engine = f"The {self.side} engine ({self._config.model})"
        if isinstance(error, EngineDeadError):
            return EngineCrashed(f"{engine} crashed during {prompt.key}. See its log above.")
        if self.started is None or self.started.llm is not llm:
            return EngineNotRunning(f"{engine} was closed during {prompt.key}.")
        return sample_error(prompt, self._config, self._context, error)
