"""Builds the engines of a run, each inside its wrappers."""

import asyncio
from collections.abc import Callable
from typing import cast

from loguru import logger

from lmms_eval_mai.engines.base import Engine
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.restart import RestartingEngine
from lmms_eval_mai.engines.time_sharing import SleepableEngine, TimeSharedEngine, TimeSharing
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.journal import Journal
from lmms_eval_mai.run.journaled import JournaledEngine


def build_engines(config: Config, journal: Callable[[], Journal | None]) -> dict[str, Engine]:
    """Return side -> engine, not started yet. `journal` returns the open journal, or None if there is none.

    Raises `ArgumentError`, `EngineUnavailable` or `EngineStartError`.
    """
    starting, time_sharing = asyncio.Lock(), TimeSharing() if config.sleep else None
    engines: dict[str, Engine] = {}
    for side in config.engines():
        engine = build(side, config.other(side), config.sleep)
        engine.validate()
        # This process cannot restart a server; the openai engine waits for it.
        restarts = None if side.engine == "openai" else config.engine_restarts
        engines[side.side] = wrapped = wrap(engine, journal, restarts, config.call_timeout, starting, time_sharing)
        logger.info(f"mai_cascade: {side.side}={side.model} on {side.engine}: {wrapped.describe()}")
    return engines


def wrap(
    engine: Engine,
    journal: Callable[[], Journal | None],
    restarts: int | None,
    call_timeout: float | None,
    starting: asyncio.Lock,
    time_sharing: TimeSharing | None,
) -> Engine:
    """Put an engine into its wrappers. This function alone decides their order. From the outside to the inside:

    1. The journal. A journaled call returns at once, even while the engine restarts or sleeps. A new call is written
       once, however often it was retried.
    2. Restart and `call_timeout`.
    3. Time sharing. It is inside restart, because a restart needs the GPU: it must wait until the other engine sleeps.
    4. The engine itself.
    """
    if time_sharing is not None:
        engine = TimeSharedEngine(cast(SleepableEngine, engine), time_sharing)
    return JournaledEngine(RestartingEngine(engine, restarts, call_timeout, starting), journal)
