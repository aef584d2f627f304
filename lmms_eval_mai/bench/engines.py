"""Engines that are started on first use and stay up for all repeats. On a GPU, those of one row only."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmms_eval_mai.bench.lengths import Plan
from lmms_eval_mai.bench.planned import PlannedEngine
from lmms_eval_mai.contract import Engine, EngineConfig
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.run.config import parse

NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
"""vLLM's own speculation without a second model: it proposes what followed the same tokens before."""
NAMES = ("small", "large", "small alone", "large alone", "large ngram", "large transformers", "large assisted")


def config_of(
    name: str, arguments: Mapping[str, Any], assistant_tokens: int
) -> tuple[EngineConfig, EngineConfig | None]:
    """Return the configuration of an engine, and the other engine that shares its machine. Raises `ArgumentError`.

    An engine that works alone has all cores and the whole memory, as in `mode=large`.
    """
    pair = parse(arguments)
    if name == "small":
        return pair.small, pair.large
    if name == "large":
        return pair.large, pair.small
    if name == "small alone":
        return parse({**arguments, "mode": "small"}).small, None
    if name == "large alone":
        return parse({**arguments, "mode": "large"}).large, None
    if name == "large ngram":
        return parse({**arguments, "mode": "large", "large_speculative_config": str(NGRAM)}).large, None
    own: dict[str, Any] = {"large_batch_size": 1}
    if name == "large assisted":
        own |= {"large_assistant_model": pair.small.model, "large_num_assistant_tokens": assistant_tokens}
    if "dtype" in pair.large.arguments:
        own["dtype"] = pair.large.arguments["dtype"]
    return parse({"mode": "large", "engine": "transformers", "large": pair.large.model, **own}).large, None


def engine_of(name: str, arguments: Mapping[str, Any], assistant_tokens: int) -> Engine:
    """Return an engine of `NAMES`, not started. Raises `ArgumentError`."""
    return build(*config_of(name, arguments, assistant_tokens))


class Engines:
    """The engines of all rows."""

    def __init__(self, build: Callable[[str], Engine], one_row: bool) -> None:
        """`build`: returns an engine of `NAMES`. `one_row`: whether the engines of a row are stopped before those of
        another row start."""
        self._build, self._one_row = build, one_row
        self._running: dict[str, Engine] = {}
        self.start_s: dict[str, list[float]] = defaultdict(list)
        """Name of an engine -> the seconds of each of its starts."""

    async def get(self, names: Sequence[str]) -> list[Engine]:
        """Return these engines, started. Raises a `MaiError`."""
        if self._one_row:
            await self._close([name for name in self._running if name not in names])
        for name in names:
            if name not in self._running:
                engine = self._build(name)
                engine.validate()
                began = time.perf_counter()
                try:
                    await engine.start()
                except BaseException:
                    await engine.close()
                    raise
                self.start_s[name].append(time.perf_counter() - began)
                self._running[name] = engine
        return [self._running[name] for name in names]

    async def make_room(self) -> None:
        """Stop all engines if another process needs their memory."""
        if self._one_row:
            await self.close()

    async def close(self) -> None:
        """Stop all engines."""
        await self._close(list(self._running))

    async def forget(self, names: Sequence[str]) -> None:
        """Stop engines whose row failed, so that the next use starts new ones."""
        await self._close([name for name in names if name in self._running])

    async def _close(self, names: Sequence[str]) -> None:
        for name in names:
            await self._running.pop(name).close()


def planned(engines: Sequence[Engine], plan: Plan | None) -> list[Engine]:
    """Return the engines with planned answers, or the engines themselves without a plan."""
    return list(engines) if plan is None else [PlannedEngine(engine, plan) for engine in engines]
