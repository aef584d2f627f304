"""A persistent vLLM engine: one `AsyncLLM`, whose core runs in its own process for the whole run.

vLLM batches continuously whatever is ready; its prefix and encoder caches serve the later calls of a sample,
since image and question come first in every prompt. Chat template, image preparation and validation are vLLM's
own (`rendering.py`). Written against vLLM 0.32; imported only when this engine is used.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Coroutine
from typing import Any

import psutil

from lmms_eval_mai.engines.base import Call, EngineConfig, Identity, Prompt, Sampling, Side
from lmms_eval_mai.engines.checkpoints import argument_identity, checkpoint_identity
from lmms_eval_mai.engines.messages import reserved_answer_tokens, without_thinking
from lmms_eval_mai.engines.vllm import arguments as vllm_arguments
from lmms_eval_mai.engines.vllm import placement
from lmms_eval_mai.engines.vllm.errors import sample_error, start_error_text
from lmms_eval_mai.engines.vllm.renderer import Renderer
from lmms_eval_mai.engines.vllm.renderer_sharing import shared_renderer
from lmms_eval_mai.engines.vllm.watchdog import Watchdog
from lmms_eval_mai.errors import (
    ArgumentError,
    EngineCrashed,
    EngineStartError,
    MaiError,
    PromptTooLong,
    SampleError,
)

FINISHED = ("stop", "length", "repetition")
"""How a whole answer ends. vLLM also knows `abort` and `error`, whose text is a part."""


class VllmEngine:
    """One model in vLLM, under the contract of `Engine`."""

    def __init__(self, config: EngineConfig, other: EngineConfig | None) -> None:
        self.side: Side = config.side
        self._config = config
        self._other = other
        self._vllm_config: Any = None
        self._plan = ""
        self._environment: dict[str, str] = {}
        self._llm: Any = None
        self._renderer: Renderer | None = None
        self._cache_gib = 0.0
        self._context = 0
        self._building: asyncio.Future[Any] | None = None
        self._earlier_children: set[psutil.Process] = set()
        self._watchdog: Watchdog | None = None
        self._requests = itertools.count()

    @classmethod
    def from_config(cls, config: EngineConfig, other: EngineConfig | None) -> "VllmEngine":
        return cls(config, other)

    def validate(self) -> None:
        """Build the engine's configuration: wrong arguments and missing checkpoints show here, in the parent."""
        platform = vllm_arguments.platform()
        from vllm.usage.usage_lib import UsageContext

        arguments = dict(self._config.arguments)
        devices = placement.devices(self.side, arguments.pop("devices", None), platform)
        try:
            if arguments.get("enable_sleep_mode") and platform == "cpu":
                raise ArgumentError("sleep=true needs a GPU: on a CPU both models are in memory at once. Leave it out.")
            engine_args = vllm_arguments.engine_args(self._config, arguments)
            parts = placement.worker_count(engine_args) * (2 if self._other is not None else 1)
            self._environment = placement.environment(devices, parts, platform)
            self._plan = placement.set_defaults(engine_args, self._config, self._other, devices, platform)
            # Pictures are kept by the renderer, which may serve two engines, and not once more by each engine.
            self._cache_gib, engine_args.mm_processor_cache_gb = engine_args.mm_processor_cache_gb, 0
            with placement.environment_for_children(self._environment):
                # Without a usage context vLLM takes its smallest batch limits, those of a bare engine.
                self._vllm_config = engine_args.create_engine_config(UsageContext.LLM_CLASS)
        except MaiError:
            raise
        except Exception as error:
            raise EngineStartError(start_error_text(self._config, error)) from error

    def describe(self) -> str:
        return self._plan

    def identity(self) -> Identity:
        import vllm

        given = self._config.arguments
        return {
            "engine": f"vllm {vllm.__version__}",
            "model": self._config.model,
            "checkpoint": checkpoint_identity(self._config.model, given.get("revision")),
            "arguments": argument_identity(given, vllm_arguments.PERFORMANCE_ARGUMENTS),
        }

    async def start(self) -> None:
        if self._vllm_config is None:
            await asyncio.to_thread(self.validate)
        # Building an engine takes half a minute and blocks: not on the event loop.
        self._watchdog = Watchdog()
        self._earlier_children = _children()
        self._building = asyncio.ensure_future(asyncio.to_thread(self._build))
        while not self._building.done():  # wait() leaves it alone when it is cancelled itself
            await asyncio.wait({self._building}, timeout=0.5)
            self._watchdog.watch(child.pid for child in _children() - self._earlier_children)
        self._llm, self._renderer = self._building.result()
        self._building = None
        self._context = self._llm.vllm_config.model_config.max_model_len

    def _build(self) -> tuple[Any, Renderer]:
        from vllm.v1.engine.async_llm import AsyncLLM

        with placement.environment_for_children(self._environment):
            try:
                # With statistics on, every output tells when it was queued, scheduled and begun.
                llm = AsyncLLM.from_vllm_config(self._vllm_config, disable_log_stats=False)
                try:
                    return llm, shared_renderer(llm.vllm_config, self._cache_gib)
                except Exception:
                    llm.shutdown()
                    raise
            except Exception as error:
                raise EngineStartError(start_error_text(self._config, error)) from error

    async def close(self) -> None:
        llm, self._llm = self._llm, None
        self._vllm_config = None  # it holds what was found out about this engine: a next start makes its own
        building, self._building = self._building, None
        if building is not None:
            llm = await self._abort_start(building)
        self._renderer = None
        if llm is not None:
            if llm.output_handler is not None:
                llm.output_handler.cancel()  # it would take the end of the engine's process for a death, and log it
            await asyncio.to_thread(llm.shutdown)
        if self._watchdog is not None:
            self._watchdog.close()
            self._watchdog = None

    async def _abort_start(self, building: "asyncio.Future[Any]") -> Any:
        """A start that nobody waits for any more: its processes are killed, so that it ends now and not in minutes."""
        while not building.done():
            for child in _children() - self._earlier_children:
                with contextlib.suppress(psutil.Error):
                    child.kill()
            await asyncio.wait({building}, timeout=0.2)
        return None if building.cancelled() or building.exception() else building.result()[0]

    async def sleep(self) -> None:
        """Weights into the machine's memory, caches away (vLLM's sleep level 1). No call may be in flight."""
        await self._alive(lambda llm: llm.sleep(level=1))

    async def wake(self) -> None:
        await self._alive(lambda llm: llm.wake_up())

    async def _alive(self, ask: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        if self._llm is None:
            raise EngineCrashed(f"The {self.side} engine is not running.")
        try:
            await ask(self._llm)
        except Exception as error:
            raise EngineCrashed(
                f"The {self.side} engine ({self._config.model}) does not sleep or wake: {error}"
            ) from error

    async def clear_caches(self) -> None:
        """Empty the caches of prefixes and pictures: what comes next is timed as if it came first. No call may be in
        flight; raises `MaiError` where one holds its prefix."""
        for _ in range(50):  # the engine lets go of an ended or cancelled call a step later
            if await self._llm.reset_prefix_cache():
                break
            await asyncio.sleep(0.1)
        else:
            raise MaiError(f"The {self.side} engine keeps its prefix cache: a call is still in flight. Wait for it.")
        await self._llm.reset_encoder_cache()
        if self._renderer is not None:
            await self._renderer.clear_caches()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        from vllm.v1.engine.exceptions import EngineDeadError

        llm, renderer = self._llm, self._renderer
        if llm is None or renderer is None:
            raise EngineCrashed(f"The {self.side} engine is not running.")
        asked = time.perf_counter()
        result = None
        try:
            rendered = await renderer.render(prompt.messages)
            async for output in llm.generate(
                rendered, vllm_arguments.sampling_params(sampling), f"{self.side}-{next(self._requests)}"
            ):
                result = output
        except Exception as error:
            if isinstance(error, EngineDeadError) or self._llm is not llm:  # or it was closed meanwhile
                raise EngineCrashed(
                    f"The {self.side} engine ({self._config.model}) died during {prompt.key}. Its log above says why."
                ) from error
            raise sample_error(prompt, self._config, self._context, error) from error
        how = result.outputs[0].finish_reason if result else "abort"
        if how == "abort":  # nobody here has asked for it: the engine's core was told to stop
            raise EngineCrashed(f"The {self.side} engine ({self._config.model}) is stopping during {prompt.key}.")
        if how not in FINISHED:
            raise SampleError(f"{prompt.key}: vLLM ended the request ({how}), so there is no whole answer.")
        return _call(prompt, result, asked)

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        llm, renderer = self._llm, self._renderer
        if llm is None or renderer is None:
            raise EngineCrashed(f"The {self.side} engine is not running.")
        try:
            rendered = await renderer.render(without_thinking(prompt, thinking))
        except Exception as error:
            if self._llm is not llm:
                raise EngineCrashed(f"The {self.side} engine was stopped during {prompt.key}.") from error
            raise sample_error(prompt, self._config, self._context, error) from error
        room = self._context - len(rendered["prompt_token_ids"]) - reserved_answer_tokens(sampling.max_tokens)
        if room <= 0:
            raise PromptTooLong(
                f"{prompt.key}: image and question leave no room for thinking in the context of {self._config.model}, "
                f"{self._context} tokens. Raise {self.side}_max_model_len."
            )
        return renderer.plain.end(thinking, room)


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _call(prompt: Prompt, result: Any, asked: float) -> Call:
    total_s = time.perf_counter() - asked
    output, metrics = result.outputs[0], result.metrics
    # Engine times are monotonic stamps of the engine's process; only their differences mean something here.
    decoding_s = metrics.last_token_ts - metrics.first_token_ts
    return Call(
        key=prompt.key,
        text=output.text,
        finish_reason=output.finish_reason,
        prompt_tokens=len(result.prompt_token_ids),
        cached_tokens=result.num_cached_tokens or 0,
        output_tokens=len(output.token_ids),
        queued_s=max(0.0, metrics.scheduled_ts - metrics.queued_ts),
        ttft_s=max(0.0, total_s - decoding_s),
        total_s=total_s,
    )
