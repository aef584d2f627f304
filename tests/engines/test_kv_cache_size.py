"""The size of the KV cache in the plan, checked by vLLM itself: it refuses to start if one sequence does not fit."""

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest
from support.engine_cores import fork_cores

from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.vllm.planning.memory import one_sequence_bytes
from lmms_eval_mai.engines.vllm.planning.models import model_size
from lmms_eval_mai.errors import EngineStartError
from lmms_eval_mai.run.config import parse

CONTEXT = 1_000
CPU_BLOCK_TOKENS = 32
"""Our default on a CPU. 1,000 tokens do not fill the last block."""
FLOAT32 = 4


def start(checkpoint: Path, kv_cache_bytes: int) -> None:
    """Start an engine with a KV cache of this size, and close it."""
    config = parse(
        {
            "mode": "small",
            "small": str(checkpoint),
            "dtype": "float32",
            "max_model_len": CONTEXT,
            "kv_cache_memory_bytes": kv_cache_bytes,
        }
    )
    engine = build(config.small)

    async def start_and_close() -> None:
        try:
            await engine.start()
        finally:
            await engine.close()

    asyncio.run(start_and_close())


def test_vllm_starts_with_the_planned_kv_cache_of_one_sequence_and_refuses_one_byte_less(
    tiny_pair: tuple[Path, Path],
) -> None:
    fork_cores()
    checkpoint = tiny_pair[0]
    size = model_size(json.loads((checkpoint / "config.json").read_text()), weight_bytes=0)
    assert size is not None
    size = dataclasses.replace(size, kv_number_bytes=FLOAT32)
    planned = one_sequence_bytes(size, CONTEXT, block_tokens=CPU_BLOCK_TOKENS)
    start(checkpoint, planned)
    with pytest.raises(EngineStartError) as raised:
        start(checkpoint, planned - 1)
    first_line, _, log = str(raised.value).partition("\n")
    assert f"To serve at least one request with the model's max seq len ({CONTEXT})" in first_line
    assert "larger than the available KV cache memory" in first_line and "Engine core init" not in first_line
    assert log.startswith("The end of its log:\n") and "ValueError" in log
