"""Uses private attributes of vLLM and of multiprocessing. No other module does.

Of lmms-eval's private attributes, only `task._instances` is used: `harness/model.py` changes it.

Check every function here when vLLM is upgraded; `tests/engines/test_vllm_internals.py` checks that the attributes
exist. Besides these, the following names are not part of vLLM's documented interface:

- `AsyncLLM.output_handler` (engine.py), and `AsyncLLM.shutdown(timeout)` (processes.py);
- `BaseRenderer.render_messages_async`, `tokenize_prompts_async`, `process_for_engine_async`, `default_chat_tok_params`
  (renderer.py), and `get_mm_processor` (renderer_sharing.py);
- `AsyncLLM.engine_core.call_utility_all_async` and `AsyncLLM.output_processor.propagate_error` (here);
- of the workers and their model runner: `model_runner`, `execute_model`, `input_batch`, `seq_lens`, `kv_cache_config`,
  and `Attention.impl.forward` and `do_kv_cache_update` (attention_worker.py, attention_keys.py);
- the names of the processes: `EngineCore`, `EngineCore_DP<n>`, `VLLM_DP_Coordinator` (processes.py);
- `v1.engine.detokenizer.uses_fast_detokenizer`, and `_tokenizer` of a tokenizer (detokenizer.py);
- the environment variable `placement.THREADS_SET_BY_VLLM`;
- the messages in `logs.HARMLESS` and `logs.START_FAILURES`.
"""

import asyncio
import multiprocessing
import multiprocessing.util
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

CRASH_CHECK_S = 1.0
"""Seconds between two checks that the engine of a call to its workers has not crashed."""


def clear_image_cache(renderer: Any) -> "Future[None]":
    """Empty a renderer's cache of prepared images.

    A cancelled call may still be preparing an image. So this runs in the one thread that uses the cache, after that
    image.
    """
    cache = renderer._mm_processor_only_cache
    cleared: Future[None] = renderer._mm_executor.submit(lambda: None if cache is None else cache.clear_cache())
    return cleared


async def call_workers(llm: Any, method: str, *args: Any) -> list[list[Any]]:
    """Call a method of all workers of an `AsyncLLM`. Returns their results: a list for each replica.

    Raises vLLM's `EngineDeadError` if the engine crashes. (`AsyncLLM.collective_rpc` would wait forever, and returns
    the results of the first replica only.)
    """
    call = llm.engine_core.call_utility_all_async("collective_rpc", method, None, args, None)
    reply: asyncio.Future[list[list[Any]]] = asyncio.ensure_future(call)
    try:
        while not (await asyncio.wait({reply}, timeout=CRASH_CHECK_S))[0]:
            if llm.errored:
                raise llm.dead_error
        return reply.result()
    finally:
        reply.cancel()


def fail_requests(llm: Any) -> None:
    """Raise vLLM's `EngineDeadError` for all requests of an `AsyncLLM` that was stopped.

    vLLM does this when it notices a crash, but not if it is stopped before, and then the requests would wait for ever.
    """
    from vllm.v1.engine.exceptions import EngineDeadError

    llm.output_processor.propagate_error(EngineDeadError())


def decode_token_by_token(tokenizer: Any, prompt_tokens: list[int], tokens: list[int], params: Any) -> str:
    """Return the text of an answer as vLLM decodes it. `params`: the `SamplingParams` of its request."""
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    request: Any = SimpleNamespace(request_id="", prompt_token_ids=prompt_tokens, sampling_params=params)
    detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, request)
    detokenizer.update(tokens, False)
    return detokenizer.get_next_output_text(True, False)


def has_prepared_image(renderer: Any, uuid: str) -> bool:
    """Return whether a renderer's cache has the prepared image with this name. No image may be in preparation."""
    cache = renderer._mm_processor_only_cache
    return cache is not None and bool(cache.is_cached_item(uuid))


def imports_main_script() -> bool:
    """Return whether this is a spawned process that is still importing the script of its parent."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


FIRST_CALL = "lmms-eval-mai"


class _FirstCall:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return self._function, ()


def set_first_call(function: Callable[[], None] | None) -> None:
    """Let the processes that this process spawns call a function of a module before they import what they run. None:
    stop this.

    A process is sent to its child as a pickle, in which `_config` comes before the function that the child runs.
    """
    config: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    if function is None:
        config.pop(FIRST_CALL, None)
    else:
        config[FIRST_CALL] = _FirstCall(function)


def flush_standard_streams() -> None:
    multiprocessing.util._flush_std_streams()  # type: ignore[attr-defined]
