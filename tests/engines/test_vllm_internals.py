"""The private attributes of libraries that `engines/vllm/internals.py` lists still exist."""

import asyncio
import inspect
import multiprocessing
import multiprocessing.spawn
import multiprocessing.util
import re
from pathlib import Path

import pytest
from support.engines import Running

from lmms_eval_mai.engines.vllm import internals, logs, placement, processes


def test_attributes_of_vllm_exist(vllm: Running) -> None:
    llm, renderer = vllm.engine._started.llm, vllm.engine._started.renderer._renderer
    assert hasattr(llm, "output_handler")
    assert "timeout" in inspect.signature(llm.shutdown).parameters
    assert callable(renderer._mm_processor_only_cache.is_cached_item) and callable(renderer._mm_executor.submit)
    for name in ("render_messages_async", "tokenize_prompts_async", "process_for_engine_async", "get_mm_processor"):
        assert callable(getattr(renderer, name)), name
    assert renderer.default_chat_tok_params is not None
    assert [child.name for child in multiprocessing.active_children()].count(processes.CORE) >= 1


def test_call_to_the_workers_of_a_crashed_engine_raises_its_error(vllm: Running) -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    class Crashed:
        """Looks like an `AsyncLLM` whose core crashes during a call: the call never ends."""

        dead_error = EngineDeadError()
        errored = False

        @property
        def engine_core(self) -> "Crashed":
            return self

        async def call_utility_all_async(self, *arguments: object) -> None:
            self.errored = True
            await asyncio.Event().wait()

    assert (
        isinstance(vllm.engine._started.llm.dead_error, EngineDeadError) and vllm.engine._started.llm.errored is False
    )
    with pytest.raises(EngineDeadError):
        vllm.loop.run(internals.call_workers(Crashed(), "mai_attention_kept"))


def test_messages_and_names_of_vllm_exist() -> None:
    import vllm

    files = Path(vllm.__file__).parent.rglob("*.py")
    source = re.sub(r'"\s*\n\s*f?"', "", "\n".join(file.read_text() for file in files))  # joins texts of several lines
    source = source.replace("%s is not found in LD_PRELOAD", "libtcmalloc is not found in LD_PRELOAD")
    names = (*logs.HARMLESS, *logs.START_FAILURES, processes.COORDINATOR, processes.CORE, placement.THREADS_SET_BY_VLLM)
    elsewhere = ["libiomp is not found in LD_PRELOAD", "Qwen3VL video processing does not apply"]
    assert [name for name in names if name not in source] == elsewhere


def test_attributes_of_multiprocessing_exist() -> None:
    assert "_inheriting" in inspect.getsource(multiprocessing.spawn)
    assert not internals.imports_main_script()
    internals.flush_standard_streams()
