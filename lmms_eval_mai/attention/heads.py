"""Reads single heads of the large model with the transformers engine, whichever engine wrote the thinking.

The other engines return the mean over heads only. What was read is kept on the disk, so that a command that is run
again reads no document twice.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lmms_eval_mai.attention.figures import Reading, reading
from lmms_eval_mai.attention.results import replace
from lmms_eval_mai.contract import SIDES, AttentionRequest, CallKey, EngineConfig, Prompt, Side
from lmms_eval_mai.engines.transformers.engine import TransformersEngine
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper import prompts
from lmms_eval_mai.paper.calls import with_stage_text
from lmms_eval_mai.paper.sample import Sample
from lmms_eval_mai.run.evaluation import layers_of
from lmms_eval_mai.run.loop import LoopThread

SHARED_ARGUMENTS = ("dtype", "revision", "trust_remote_code", "max_model_len")
"""Arguments of vLLM that the transformers engine has too."""
ARRAYS = ("weights", "total_weight", "token_share")
"""The fields of a `Reading` that are arrays."""


class HeadReader:
    """The large model in transformers."""

    def __init__(self, config: EngineConfig) -> None:
        """`config`: the large engine of the run. Raises `ArgumentError` if it has no checkpoint, or if an argument
        cannot work."""
        if config.engine not in ("vllm", "transformers"):
            raise ArgumentError(
                f"The figures need single heads of the large model, and large_engine={config.engine} has no "
                "checkpoint. Choose vllm or transformers, or only --table9."
            )
        arguments = config.arguments
        if config.engine == "vllm":
            arguments = {name: value for name, value in arguments.items() if name in SHARED_ARGUMENTS}
        own = EngineConfig("large", "transformers", config.model, arguments, attention=True)
        self._engine = TransformersEngine(own)
        self._layers = tuple(range(1, layers_of(own) + 1))
        self._loop: LoopThread | None = None

    def identity(self) -> str:
        """Return everything that can change a weight."""
        return self._engine.identity()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Load the model for a `with` block."""
        self._loop = LoopThread()
        try:
            self._loop.run(self._engine.start())
            yield
        finally:
            try:
                self._loop.run(self._engine.close())
            finally:
                self._loop.close()

    def read(self, sample: Sample, thinking: str, delta: float) -> Reading:
        """Return how the large model reads a thinking in the Reason Transfer prompt. Raises a `SampleError`.
        Must be called in a block of `running`."""
        assert self._loop is not None
        before, after = prompts.transfer_parts(sample.benchmark.name, sample.kind)
        messages = with_stage_text(sample, before, thinking, after)
        key = CallKey(sample.task, sample.doc_id, sample.repeat, "large", "score")
        prompt = Prompt(messages, key, AttentionRequest(self._layers, thinking))
        _, tokens, layers = self._loop.run(self._engine.head_weights(prompt))
        return reading(tokens, np.stack([layer.numpy() for layer in layers]), delta)


def load(path: Path, origin: str) -> dict[Side, Reading] | None:
    """Return how a document was read. None: it was not, or from something else. `origin`: all that the weights depend
    on, as text."""
    try:
        rows = {row["thinking"]: row for row in pq.read_table(path).to_pylist()}
        if any(rows[side]["origin"] != origin for side in SIDES):
            return None
        return {side: Reading(rows[side]["tokens"], *(np.array(rows[side][name]) for name in ARRAYS)) for side in SIDES}
    except (OSError, ValueError, LookupError):  # no file, or a broken one
        return None


def save(path: Path, origin: str, doc_id: int, readings: Mapping[Side, Reading]) -> None:
    """Write how a document was read: one row per thinking."""
    rows: list[dict[str, Any]] = [
        {"doc_id": doc_id, "thinking": side, "origin": origin, "tokens": list(found.tokens)}
        | {name: getattr(found, name).tolist() for name in ARRAYS}
        for side, found in readings.items()
    ]
    path.parent.mkdir(exist_ok=True)
    replace(path, pa.Table.from_pylist(rows))
