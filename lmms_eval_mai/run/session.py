"""One run: its engines on one event loop, its journal, and its samples.

This module does not know lmms-eval's requests: it takes the names of samples and a function that opens a sample (loads
its document and decodes its images). The engines start when the first samples are run. They serve all later samples,
until `stop`.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from loguru import logger

from lmms_eval_mai.contract import SIDES, Engine, Side
from lmms_eval_mai.errors import EngineCrashed, MaiError, TooManyErrors
from lmms_eval_mai.paper.cascade import MODES, Mode
from lmms_eval_mai.paper.sample import Sample, Trace
from lmms_eval_mai.run import fingerprint
from lmms_eval_mai.run.at_exit import at_end_of_main_thread
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.engine_chain import Share, build_engines, clear_caches, pair_of, start_engines
from lmms_eval_mai.run.event_loop import LoopThread
from lmms_eval_mai.run.failures import convert_unexpected_error
from lmms_eval_mai.run.journal.files import SampleKey, folder_of
from lmms_eval_mai.run.journal.journal import Journal
from lmms_eval_mai.run.metering import RunTotals
from lmms_eval_mai.run.progress import Outcome, Progress, progress_bar
from lmms_eval_mai.run.scheduler import gc_frozen, run_samples

MAX_OPEN_SAMPLES = 256
"""Number of open samples if the user gives none."""


class Session:
    """The engines, the event loop and the journal of one model object."""

    def __init__(
        self,
        config: Config,
        run: Mode | None = None,
        sides: Collection[Side] = SIDES,
        share: Share | None = None,
        idle_check_s: float | None = None,
    ) -> None:
        """`run`: runs one sample; None: the function of the mode. `sides`: the engines that it calls; the others are
        not started. `share`: puts each engine into a wrapper that finds calls of other runs. `idle_check_s`: as for
        `RestartingEngine`. Raises `ArgumentError`, `EngineUnavailable`, `EngineStartError` or `JournalError`."""
        self._journal_folder = folder_of(config.journal)
        self.totals = RunTotals()
        self._built_for, self._built = config, build_engines(config, lambda: self._journal, share, idle_check_s)
        """All engines of this session. `_engines` are those that the mode of the current run uses."""
        self._use(config, run, sides)
        self._running: set[str] = set()
        self._slots: asyncio.Semaphore | None = None
        """Limits the open samples of `submit`."""
        self._drop_stop_at_end: Callable[[], object] | None = None
        """Drops the stop at the end of the process. None: the engines are not running."""
        self._submitted: set[asyncio.Task[Any]] = set()
        """The samples of `submit` that are not finished."""
        self._loop: LoopThread | None = None
        self._starting = threading.Lock()
        """Held during `start`."""
        self._submitting = threading.Lock()
        """Held while a sample is submitted, and while `stop` takes the loop away. Otherwise a sample that is submitted
        then could start the engines again."""
        self._journal: Journal | None = None
        self._all_keys: set[SampleKey] = set()
        self._ranks = 1

    def _use(self, config: Config, run: Mode | None = None, sides: Collection[Side] = SIDES) -> None:
        self.config, self._run = config, run or MODES[config.mode]
        self._engines: dict[str, Engine] = {engine.side: self._built[engine.side] for engine in config.engines()}
        self.pair = pair_of(self._engines, config)
        sparse = self.pair.sparse
        if sparse is not None and run is None:  # another function may use other layers
            depth = self._engines[sparse.source].layers()
            logger.info(f"mai_cascade: layer {sparse.layer} of {depth} of the {sparse.source} model selects tokens.")
        self._called = [side for side in self._engines if side in sides]

    def change_run(self, config: Config) -> None:
        """Use other arguments for the next samples, on the same engines, which stay up. `config`: the models and
        engines of this session; its mode may use only one of them. Call it between two runs. Raises `JournalError`."""
        self.close_journal()
        self.forget_run()
        self._journal_folder = folder_of(config.journal)
        self._use(config)

    def start_engines(self, sides: Sequence[Side] = SIDES) -> None:
        """Start those of these engines that do not run yet, before any samples. Raises `EngineStartError`."""
        self.check_caller(waits=True)
        with self._starting:
            self._drop_stop_at_end = self._drop_stop_at_end or at_end_of_main_thread(self.stop)
            self._run_on_loop(self._start([side for side in self._built if side in sides]))

    def clear_caches(self) -> None:
        """Clear the caches of the engines that run, so that the next run is timed like a first one."""
        for side in self._running:
            self._run_on_loop(clear_caches(self._built[side]))

    def run_samples(
        self,
        keys: Sequence[SampleKey],
        open_sample: Callable[[int], Sample],
        decoding: Mapping[str, Any],
        rank: int = 0,
        world_size: int = 1,
    ) -> list[Outcome]:
        """Run one sample per key and return their outcomes in the same order.

        `open_sample`: returns the sample for the index of a key; called in threads. `decoding`: generation arguments by
        task. Raises a `MaiError` if the run must stop. All finished calls are in the journal then.
        """
        if not keys:
            return []
        done = self.start(decoding, keys, rank, world_size)
        self._all_keys.update(keys)
        self._ranks = world_size
        with gc_frozen(), progress_bar(len(keys), shown=rank == 0, done=len(done)) as bar:
            progress = Progress(keys, self.totals, self._journal, self._allowed_errors(), bar, done)
            try:
                self._run_on_loop(
                    run_samples(len(keys), open_sample, self._run_one, progress.report, self.max_open_samples())
                )
            except MaiError as error:
                self.totals.meter.failures.add_to_message(error)
                raise
        if self.totals.meter.failed() > self._allowed_errors():
            raise TooManyErrors(self._too_many_errors_text())
        return [progress.outcomes[index] for index in range(len(keys))]

    def start(
        self, decoding: Mapping[str, Any], keys: Sequence[SampleKey] = (), rank: int = 0, world_size: int = 1
    ) -> set[SampleKey]:
        """Start the engines and open the journal, if they are not started and open. Returns those samples that earlier
        processes finished. The arguments and the errors are those of `run_samples`."""
        self.check_caller(waits=True)
        with self._starting:
            return self._start_all(decoding, keys, rank, world_size)

    def _start_all(
        self, decoding: Mapping[str, Any], keys: Sequence[SampleKey], rank: int, world_size: int
    ) -> set[SampleKey]:
        self._drop_stop_at_end = self._drop_stop_at_end or at_end_of_main_thread(self.stop)
        # The model that an endpoint serves is part of the fingerprint, and only the running endpoint knows it.
        endpoints = [engine.side for engine in self.config.engines() if engine.engine == "openai"]
        self._run_on_loop(self._start([side for side in endpoints if side in self._called]))
        done = self._open_journal(keys, decoding, rank, world_size)
        self._run_on_loop(self._start(self._called))
        self._slots = self._slots or asyncio.Semaphore(self.max_open_samples())
        return done

    def submit(self, open_sample: Callable[[], Sample]) -> "Future[Trace]":
        """Run one more sample, beside all others. `max_open_samples` limits how many are open; the others wait.

        `open_sample` is called in a thread. The future raises its errors and those of the engines. It may be cancelled.
        Raises `EngineCrashed` if the engines are not running (`start`).
        """
        self.check_caller(waits=False)
        with self._submitting:
            if self._loop is None or self._slots is None:
                raise EngineCrashed("The engines are not running. Start them first.")
            return self._loop.submit(self._open_and_run(open_sample, self._slots))

    def settings(self) -> dict[str, str]:
        """Return where each engine runs and with which settings, by side: with what vLLM chose, after its start."""
        return {side: engine.describe() for side, engine in self._engines.items()}

    def max_open_samples(self) -> int:
        """Return how many samples are open at the same time."""
        given = self.config.max_open_samples
        return MAX_OPEN_SAMPLES if given is None else given

    def check_caller(self, waits: bool) -> None:
        """Refuse callers for whom a call would never end (`LoopThread.check_caller`). Raises `MaiError`."""
        if self._loop is not None:
            self._loop.check_caller(waits)

    def resume_hint(self) -> str:
        """Return how to resume a run that stopped, or an empty text if there is nothing to resume."""
        if self.config.journal == "off":
            return "journal=off: no answers of this run are kept." if self.totals.meter.tasks else ""
        if self._journal is None or self._journal.empty or not self._journal.path.exists():
            return ""
        path = self._journal.path
        return f"All finished calls are in {path}. To resume, run the same command with the same models again."

    def close_journal(self) -> None:
        """Close the journal. Its file stays, and the engines stay up."""
        if self._journal is not None and not self._journal.closed:
            if self._loop is not None:
                self._loop.run(self._journal.flush())
            self._journal.close()

    def stop(self) -> None:
        """Stop the engines and close the journal. Its file stays. Has no effect in a process that was forked."""
        if self._loop is not None and not self._loop.is_in_this_process:
            return
        self.check_caller(waits=True)
        if self._drop_stop_at_end is not None:
            self._drop_stop_at_end()
            self._drop_stop_at_end = None
        with self._submitting:
            loop, self._loop, self._slots = self._loop, None, None
        self._running.clear()
        if loop is not None:
            try:
                loop.run(self._close_all())
            finally:
                loop.close()
        if self._journal is not None:
            self._journal.close()

    def forget_run(self) -> None:
        """Forget the samples of a run that an error ended. Its journal stays, for a run that resumes it."""
        self.totals = RunTotals()
        self._journal = None
        self._all_keys = set()

    def complete(self, results_written: Callable[[], bool] | None) -> None:
        """Remove the journal, because lmms-eval has scored the run: now if `results_written` is None, else when this
        process ends and `results_written` returns True. Calling it again has no effect."""
        if self._journal is not None:
            # With several ranks, the other ranks' samples are in the journals too, and this rank does not know them.
            self._journal.complete(self._all_keys if self._ranks == 1 else None, results_written)
            self._journal = None
        self._all_keys = set()

    async def _open_and_run(self, open_sample: Callable[[], Sample], slots: asyncio.Semaphore) -> Trace:
        task = asyncio.current_task()
        assert task is not None
        self._submitted.add(task)
        try:
            async with slots:
                return await self._run_one(await asyncio.to_thread(open_sample))
        finally:
            self._submitted.discard(task)

    async def _run_one(self, sample: Sample) -> Trace:
        return await convert_unexpected_error(sample, self._run(sample, self.pair))

    def _open_journal(
        self, keys: Sequence[SampleKey], decoding: Mapping[str, Any], rank: int, world_size: int
    ) -> set[SampleKey]:
        """Open the journal, if it is not open. Returns those samples that earlier processes finished."""
        if self._journal_folder is None:
            return set()
        opened = False
        if self._journal is None or self._journal.closed:
            opened = True
            identities = {side: engine.identity() for side, engine in self._engines.items()}
            current = fingerprint.of_run(self.config, identities, decoding)
            self._journal = Journal(self._journal_folder, current, decoding, rank, world_size)
        self.totals.add_earlier(keys, self._journal.wall_s)
        done = self._journal.done(keys)
        # Tell about samples that are done. About the calls of unfinished samples, tell once per journal.
        if done or (opened and self._journal.calls):
            progress_text = f"{len(done):,} of {len(keys):,} done" + (f" on rank {rank}" if world_size > 1 else "")
            logger.info(
                f"mai_cascade: resuming: {progress_text} ({self._journal.calls:,} calls in {self._journal.path})."
            )
        return done

    def _allowed_errors(self) -> int:
        allowed = self.config.max_errors
        return int(allowed) if allowed >= 1 else int(allowed * len(self._all_keys))

    def _too_many_errors_text(self) -> str:
        meter = self.totals.meter
        return (
            f"{meter.failed():,} of {len(self._all_keys):,} samples failed, and max_errors={self.config.max_errors:g} "
            f"allows {self._allowed_errors():,}:\n{meter.failures}\n"
            "Fix the causes above, or allow more with max_errors=N or a share like max_errors=0.01. The scores then "
            "cover only the answered samples."
        )

    def _run_on_loop(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end on the engines' event loop."""
        loop = self._loop = self._loop or LoopThread()
        loop.run(coroutine)

    async def _start(self, sides: Sequence[str]) -> None:
        new = [side for side in sides if side not in self._running]
        await start_engines({side: self._built[side] for side in new}, self._built_for)
        self._running.update(new)

    async def _close_all(self) -> None:
        submitted = list(self._submitted)
        for task in submitted:  # an engine that is closed during a call would be restarted
            task.cancel()
        await asyncio.gather(*submitted, return_exceptions=True)
        if self._journal is not None and not self._journal.closed:
            await self._journal.flush()
        closing = (engine.close() for engine in self._built.values())
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, Exception):
                logger.warning(f"mai_cascade: an engine did not stop cleanly: {outcome}")
