"""Builds the engines of a run, each inside its wrappers."""

import time
from collections.abc import Callable, Mapping

from loguru import logger

from lmms_eval_mai.contract import SIDES, Engine, EngineConfig
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.restart import RestartingEngine, StartLock
from lmms_eval_mai.paper.sample_run import Pair
from lmms_eval_mai.run import sparse_layer
from lmms_eval_mai.run.cancellation import gather_or_cancel
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.journal.journal import Journal
from lmms_eval_mai.run.journal.journaled_engine import JournaledEngine
from lmms_eval_mai.run.measured_engine import MeasuredEngine

Share = Callable[[Engine], Engine]
"""Puts an engine into a wrapper that finds the calls of other runs."""


def build_engines(
    config: Config,
    journal: Callable[[], Journal | None],
    share: Share | None = None,
    idle_check_s: float | None = None,
) -> dict[str, Engine]:
    """Return the engines by side, not started yet. `journal` returns the open journal, or None if there is none.
    `idle_check_s`: as for `RestartingEngine`. Raises `ArgumentError`, `EngineUnavailable` or `EngineStartError`.

    This function alone decides the order of an engine's wrappers. From the outside to the inside:

    1. The journal. A journaled call returns at once, even while the engine restarts. A new call is written once,
       however often it was retried.
    2. The calls of other runs, if there is `share`. It is inside the journal, because a journaled call of this run
       keeps its times.
    3. The time at which a call started, and the log-probability of its answer.
    4. Restart and `call_timeout`.
    5. The engine itself.
    """
    starting = StartLock()
    engines: dict[str, Engine] = {}
    for engine_config in config.engines():
        engine = build(engine_config, config.other(engine_config))
        engine.validate()
        # This process cannot restart a server; the openai engine waits for it.
        restarts = None if engine_config.engine == "openai" else config.engine_restarts
        lock = starting if engine.starts_alone() else None
        engine = MeasuredEngine(
            RestartingEngine(engine, restarts, config.call_timeout, lock, idle_check_s=idle_check_s)
        )
        engines[engine_config.side] = JournaledEngine(engine if share is None else share(engine), journal)
    return engines


def pair_of(engines: Mapping[str, Engine], config: Config) -> Pair:
    """Return the pair of these engines. In the modes `small` and `large` there is one engine. It is put into both
    fields of the pair, and the mode uses one field."""
    small, large = (engines.get(side) or next(iter(engines.values())) for side in SIDES)
    sparse = sparse_layer.resolve(config, engines[config.sparse_from]) if config.transfer == "sparse" else None
    return Pair(
        small,
        large,
        think=config.think,
        rules=config.rules,
        on_overflow=config.on_overflow,
        transfer_answer=config.transfer_answer,
        sparse=sparse,
        log_prompts=config.log_prompts,
    )


async def start_engines(engines: Mapping[str, Engine], config: Config) -> None:
    """Start the engines at the same time. Engines that must start one after the other (`Engine.starts_alone`) do so.

    If one fails, the other starts are cancelled; the caller must close all engines.
    """
    configs: dict[str, EngineConfig] = {engine.side: engine for engine in config.engines()}
    await gather_or_cancel(_start(engine, configs[engine.side]) for engine in engines.values())


async def clear_caches(engine: Engine) -> None:
    """Clear the caches of an engine that runs. An engine that crashed has none; its next call restarts it."""
    try:
        await engine.clear_caches()
    except Exception as error:
        logger.debug(f"mai_cascade: the caches of the {engine.side} engine are not cleared ({error}).")


async def _start(engine: Engine, config: EngineConfig) -> None:
    started_at = time.perf_counter()
    logger.info(f"mai_cascade: starting {config.side}={config.model} with {config.engine}: {engine.describe()}.")
    await engine.start()
    logger.info(f"mai_cascade: {config.side} is ready after {time.perf_counter() - started_at:.0f} s.")
