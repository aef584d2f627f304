"""One run: two engines on one event loop, one journal, and the requests that walk through them.

The engines start with the first request that needs them and serve every later one, until `stop`.
"""

import asyncio
import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from loguru import logger
from tqdm import tqdm

from lmms_eval_mai.engines.base import Engine
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.restart import SupervisedEngine
from lmms_eval_mai.engines.time_sharing import Sleeper, TakingTurns, Turns
from lmms_eval_mai.errors import MaiError, SampleError, TooManyErrors
from lmms_eval_mai.harness.requests import is_padding, open_sample
from lmms_eval_mai.paper.cascade import MODES, Pair
from lmms_eval_mai.paper.sample import Sample, Trace
from lmms_eval_mai.run import fingerprint
from lmms_eval_mai.run import table as report
from lmms_eval_mai.run.config import SIDES, Config
from lmms_eval_mai.run.journal import Journal
from lmms_eval_mai.run.journal_files import SampleKey, default_folder
from lmms_eval_mai.run.journaled import JournaledEngine
from lmms_eval_mai.run.metering import Meter, Run
from lmms_eval_mai.run.scheduler import LoopThread, walk_all

Outcome = Trace | SampleError | None
"""What became of a request: its trace, its error, or None for padding."""


class Session:
    """Engines, loop and journal of one model object."""

    def __init__(self, config: Config) -> None:
        """Raises `ArgumentError`, `EngineUnavailable` or `EngineStartError`."""
        self.config = config
        self.run = Run()
        self._engines: dict[str, Engine] = {}
        starting, turns = asyncio.Lock(), Turns() if config.sleep else None
        for side in config.sides():
            engine = build(config, side)
            engine.check()
            if turns is not None:
                engine = TakingTurns(cast(Sleeper, engine), turns)
            logger.info(f"mai_cascade: {side.side}={side.model} on {side.engine}: {engine.plan()}")
            # A server is not ours to restart: its engine waits for it by itself.
            restarts = None if side.engine == "openai" else config.engine_restarts
            self._engines[side.side] = SupervisedEngine(engine, restarts, config.call_timeout, starting)
        self._journal: Journal | None = None
        self._loop: LoopThread | None = None
        self._running: set[str] = set()
        self._walked: set[SampleKey] = set()
        self._ranks = 1

    def walk(self, requests: Sequence[Any], documents: Mapping[str, Any], rank: int, world_size: int) -> list[Outcome]:
        """One outcome a request. Raises a `MaiError` when the run cannot go on; what is done is in the journal."""
        outcomes: list[Outcome] = [None] * len(requests)
        todo = [(index, repeat) for index, repeat in enumerate(_repeats(requests)) if not is_padding(requests[index])]
        if not todo:
            return outcomes
        keys = [_sample_key(requests[index], repeat) for index, repeat in todo]
        # What an endpoint serves is part of the fingerprint, and only it can say so.
        self._call(self._start([side.side for side in self.config.sides() if side.engine == "openai"]))
        self._open_journal(keys, {request.args[4]: request.args[2] for request in requests}, rank, world_size)
        self._walked.update(keys)
        self._ranks = world_size
        self._call(self._start(list(self._engines)))
        pair, config, journal, meter = self._pair(), self.config, self._journal, self.run.meter
        mode, models = MODES[config.mode], {side.side: side.model for side in config.sides()}
        allowed = config.max_errors if config.max_errors >= 1 else int(config.max_errors * len(self._walked))
        began, before = time.perf_counter(), self.run.wall_s
        last_exit = began

        def open_(number: int) -> Sample:
            index, repeat = todo[number]
            return open_sample(requests[index], repeat, documents, config.think, config.max_new_tokens)

        async def walk_one(sample: Sample) -> Trace:
            try:
                return await mode(sample, pair)
            except (MaiError, asyncio.CancelledError):
                raise
            except Exception as error:
                logger.opt(exception=error).debug("mai_cascade: unexpected error")
                raise SampleError(
                    f"{sample.task} document {sample.doc_id}: {type(error).__name__}: {error}. lmms-eval's parser or "
                    "lmms-eval-mai cannot take this answer: please report it."
                ) from error

        async def done(number: int, trace: Trace) -> None:
            nonlocal last_exit
            since, last_exit = last_exit, time.perf_counter()
            self.run.wall_s = before + last_exit - began
            if journal is not None:
                await journal.add_exit(keys[number], trace.exit, last_exit - since)
            outcomes[todo[number][0]] = trace
            meter.add(trace)
            report.log_call_usage(trace, models)
            bar.set_postfix(meter.exits(), refresh=False)
            bar.update()

        async def failed(number: int, error: SampleError) -> bool:
            outcomes[todo[number][0]] = error
            meter.add_error(keys[number][0], error)
            with tqdm.external_write_mode():
                logger.warning(f"mai_cascade: not answered: {type(error).__name__}: {error}")
            if journal is not None:
                await journal.add_error(keys[number], error)
            bar.update()
            return meter.failed() <= allowed

        with _imports_out_of_gc(), tqdm(total=len(todo), desc="mai_cascade", disable=rank != 0) as bar:
            try:
                self._call(walk_all(len(todo), open_, walk_one, done, failed, config.max_open_samples))
            except MaiError as error:
                if meter.failed():
                    error.args = (
                        f"{error}\nBefore it, {meter.failed():,} samples failed:\n{report.failures(meter)}\n",
                    )
                raise
        self.run.wall_s = before + time.perf_counter() - began
        if meter.failed() > allowed:
            raise TooManyErrors(_too_many(meter, allowed, len(self._walked), config))
        return outcomes

    def resume_hint(self) -> str:
        """What to type after a run that stopped."""
        if self._journal is None:
            return "journal=off: nothing of this run was kept." if self.run.meter.tasks else ""
        if self._journal.empty:
            return ""
        path = self._journal.path
        return f"All finished calls are in {path}: the same command, with the same models, goes on from there."

    def stop(self) -> None:
        """Stop the engines; the journal stays."""
        loop, self._loop = self._loop, None
        self._running.clear()
        if loop is not None:
            try:
                loop.run(self._close_all())
            finally:
                loop.close()
        if self._journal is not None:
            self._journal.close()

    def complete(self, written: Callable[[], bool]) -> None:
        """The results are there: nothing is left to resume, once they are `written`."""
        if self._journal is not None:
            # Other ranks walked other samples, of which this one knows nothing.
            self._journal.complete(self._walked if self._ranks == 1 else None, written)
            self._journal = None
        self._walked = set()

    def _pair(self) -> Pair:
        """Alone, a model stands on both sides; its mode calls one of them."""
        engines = self._engines
        if self._journal is not None:
            engines = {side: JournaledEngine(engine, self._journal) for side, engine in engines.items()}
        small, large = (engines.get(side) or next(iter(engines.values())) for side in SIDES)
        return Pair(small, large, self.config.think, self.config.rules, self.config.on_overflow)

    def _open_journal(self, keys: Sequence[SampleKey], decoding: Mapping[str, Any], rank: int, world_size: int) -> None:
        """`decoding`: task -> its generation arguments."""
        if self.config.journal == "off":
            return
        opened = self._journal is None or self._journal.closed
        if self._journal is None or self._journal.closed:
            identities = {side: engine.identity() for side, engine in self._engines.items()}
            ours = fingerprint.of_run(self.config, identities, decoding)
            folder = Path(self.config.journal).expanduser() if self.config.journal else default_folder()
            self._journal = Journal(folder, ours, decoding, rank, world_size)
        earlier_s = self._journal.wall_s(keys)
        self.run.wall_s += earlier_s
        self.run.earlier_s += earlier_s
        done = self._journal.done(keys)
        if done or (opened and self._journal.calls):
            of = f"{done:,} of {len(keys):,} done" + (f" on rank {rank}" if world_size > 1 else "")
            logger.warning(f"mai_cascade: resuming: {of} ({self._journal.calls:,} calls in {self._journal.path}).")

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """On the engines' loop, to the end."""
        if self._loop is None:
            self._loop = LoopThread()
        self._loop.run(coroutine)

    async def _start(self, sides: Sequence[str]) -> None:
        for side in sides:  # one after the other: each measures the memory that is free
            if side not in self._running:
                await self._engines[side].start()
                self._running.add(side)

    async def _close_all(self) -> None:
        if self._journal is not None and not self._journal.closed:
            await self._journal.drain()
        closing = (engine.close() for engine in self._engines.values())
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, Exception):
                logger.warning(f"mai_cascade: an engine did not stop cleanly: {outcome}")


def _too_many(meter: Meter, allowed: float, count: int, config: Config) -> str:
    return (
        f"{meter.failed():,} of {count:,} samples failed, and max_errors={config.max_errors:g} allows {allowed:,.0f}:\n"
        f"{report.failures(meter)}\nMend what they name or allow more with max_errors=N (or a share, max_errors=0.01): "
        "scores are then over the answered samples."
    )


def _sample_key(request: Any, repeat: int) -> SampleKey:
    return request.args[4], request.args[3], repeat


def _repeats(requests: Sequence[Any]) -> list[int]:
    """lmms-eval repeats a request by listing the same object several times in a row: 0, 1, ... for each."""
    return [repeat for _, same in itertools.groupby(requests, key=id) for repeat, _ in enumerate(same)]


@contextlib.contextmanager
def _imports_out_of_gc() -> Iterator[None]:
    """Full collections look at what this run makes, not at the million objects of the libraries again and again:
    a third of the orchestration's time at 20,000 samples (benchmarks/overhead.py)."""
    ours = gc.get_freeze_count() == 0  # somebody else's frozen objects stay frozen
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()
