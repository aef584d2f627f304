"""One run: the samples of one evaluation on engines that are up, with their journal, totals and error budget."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from loguru import logger

from lmms_eval_mai.contract import SIDES, Engine, Identity, Side
from lmms_eval_mai.errors import ArgumentError, EngineStartError, MaiError, SampleError, TooManyErrors
from lmms_eval_mai.paper.agreement import extract_answer
from lmms_eval_mai.paper.cascade import MODES, Mode
from lmms_eval_mai.paper.confidence import DEFAULT
from lmms_eval_mai.paper.sample import Sample, Trace
from lmms_eval_mai.run import fingerprint
from lmms_eval_mai.run.at_exit import at_end_of_main_thread
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.engines import Engines
from lmms_eval_mai.run.journal.files import SampleKey, folder_of
from lmms_eval_mai.run.journal.journal import Journal
from lmms_eval_mai.run.journal.journaled_engine import JournaledEngine
from lmms_eval_mai.run.metering import RunTotals
from lmms_eval_mai.run.pair import pair_of
from lmms_eval_mai.run.progress import Outcome, Progress, progress_bar
from lmms_eval_mai.run.scheduler import gc_frozen, run_samples


class Run:
    """The samples of one evaluation, of one `Cascade` or of one server. The first samples start the engines."""

    def __init__(
        self,
        engines: Engines,
        config: Config,
        mode: Mode | None = None,
        sides: Collection[Side] = SIDES,
        share: Callable[[Engine], Engine] = lambda engine: engine,
    ) -> None:
        """`engines`: may also have engines that the mode of `config` does not use. `mode`: runs one sample; None: the
        function of the mode. `sides`: the engines that it calls; the others are not started. `share`: puts each engine
        into a wrapper that finds the calls of other runs. Raises `ArgumentError`, or `JournalError` if the folder of
        the journal cannot be written."""
        self.config, self.totals, self.closed = config, RunTotals(), False
        self._journal_folder = folder_of(config.journal)
        self._engines = engines
        self._of_side = {engine.side: engines.of_side[engine.side] for engine in config.engines()}
        self._called = [side for side in self._of_side if side in sides]
        self._mode, self._share = mode or MODES[config.mode], share
        self.pair = pair_of(self._of_side, config)
        sparse = self.pair.sparse
        if sparse is not None and mode is None:  # another function may use other layers
            depth = self._of_side[sparse.source].layers()
            logger.info(f"mai_cascade: layer {sparse.layer} of {depth} of the {sparse.source} model selects tokens.")
        self._uncalibrated: set[str] = set()
        """Benchmarks whose threshold promises nothing, which the user was told."""
        if config.verify != "agreement":
            _warn_if_uncalibrated(config)
        self._has_probability = False
        """Whether a large model's short answer had a probability, which a first check by confidence needs."""
        self._slots = asyncio.Semaphore(config.max_open_samples)
        """Limits the open samples of `submit`."""
        self._journal: Journal | None = None
        self._begun = False
        self._drop_close_at_end: Callable[[], object] = lambda: None
        self._keys: set[SampleKey] = set()
        self._ranks = 1

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
        self.begin(decoding, rank, world_size)
        self._keys.update(keys)
        done = self._resume(keys, rank)
        with gc_frozen(), progress_bar(len(keys), shown=rank == 0, done=len(done)) as bar:
            progress = Progress(keys, self.totals, self._journal, self._allowed_errors(), bar, done)
            try:
                self._engines.run(
                    run_samples(len(keys), open_sample, self._run_one, progress.report, self.config.max_open_samples)
                )
            except MaiError as error:
                self.totals.failures.add_to_message(error)
                raise
        if (failures := self.totals.failures).count() > self._allowed_errors():
            raise TooManyErrors(
                f"{failures.count():,} of {len(self._keys):,} samples failed, and max_errors="
                f"{self.config.max_errors:g} allows {self._allowed_errors():,}:\n{failures}\n"
                "Fix the causes above, or allow more with max_errors=N or a share like max_errors=0.01. The scores "
                "then cover only the answered samples."
            )
        return [progress.outcomes[index] for index in range(len(keys))]

    def begin(self, decoding: Mapping[str, Any], rank: int = 0, world_size: int = 1) -> None:
        """Start the engines and open the journal, if they are not started and open. The arguments are those of
        `run_samples`. Raises `EngineStartError` or `JournalError`; the caller must then call `close` and
        `Engines.stop`."""
        if not self._begun:  # before the engines register their stop, which then comes before this at the end
            self._drop_close_at_end = at_end_of_main_thread(self.close)
        self._engines.run(self._begin(decoding, rank, world_size))

    def submit(self, open_sample: Callable[[], Sample], mode: Mode | None = None) -> "Future[Trace]":
        """Run one more sample, beside all others. `max_open_samples` limits how many are open; the others wait.

        `open_sample` is called in a thread. `mode`: runs this sample; None: the function of the run. The future raises
        their errors and those of the engines. It may be cancelled. Raises `EngineNotRunning` before `begin`.
        """
        return self._engines.submit(self._open_and_run(open_sample, mode))

    def settings(self) -> dict[str, str]:
        """Return where each engine runs and with which settings, by side: with what vLLM chose, after its start."""
        return {side: engine.describe() for side, engine in self._of_side.items()}

    def resume_hint(self) -> str:
        """Return how to resume a run that stopped, or an empty text if there is nothing to resume."""
        if self.config.journal == "off":
            return "journal=off: no answers of this run are kept." if self.totals.tasks else ""
        if self._journal is None or self._journal.empty or not self._journal.path.exists():
            return ""
        path = self._journal.path
        return f"All finished calls are in {path}. To resume, run the same command with the same models again."

    def close(self) -> None:
        """Close the journal. Its file stays, and the engines stay up. No further sample can be run. If samples still
        run, call `Engines.stop` first. Has no effect in a process that was forked."""
        if not self._engines.is_in_this_process:
            return
        self.closed = True
        self._drop_close_at_end()
        if self._journal is not None:
            self._journal.close()

    def stop(self) -> None:
        """Stop the engines and close the journal."""
        self._engines.stop()
        self.close()

    def complete(self, results_written: Callable[[], bool] | None) -> None:
        """Close the journal and remove it, because lmms-eval has scored the run: now if `results_written` is None, else
        when this process ends and `results_written` returns True. Calling it again has no effect."""
        self.close()
        if self._journal is not None:
            # With several ranks, the other ranks' samples are in the journals too, and this rank does not know them.
            self._journal.complete(self._keys if self._ranks == 1 else None, results_written)
            self._journal = None

    async def _begin(self, decoding: Mapping[str, Any], rank: int, world_size: int) -> None:
        """Do the work of `begin` on the event loop, where `Engines.stop` can cancel it."""
        if self.closed:
            raise EngineStartError("The run was closed before it began.")
        if self._begun:
            await self._engines.start_on_loop(self._called)
            return
        # The model that an endpoint serves is part of the fingerprint, and only the running endpoint knows it.
        endpoints = [engine.side for engine in self.config.engines() if engine.engine == "openai"]
        await self._engines.start_on_loop([side for side in endpoints if side in self._called])
        if self._journal_folder is not None and self._journal is None:
            identities: dict[str, Identity] = {side: engine.identity() for side, engine in self._of_side.items()}
            current = fingerprint.of_run(self.config, identities, decoding)
            self._journal = Journal(self._journal_folder, current, list(decoding), rank, world_size)
        self._ranks = world_size
        self.pair = pair_of({side: self._wrapped(engine) for side, engine in self._of_side.items()}, self.config)
        await self._engines.start_on_loop(self._called)
        self._begun = True

    def _wrapped(self, engine: Engine) -> Engine:
        """Return the engine with the wrappers of this run. The order is that of `build_engines`."""
        shared = self._share(engine)
        return shared if self._journal is None else JournaledEngine(shared, self._journal)

    def _resume(self, keys: Sequence[SampleKey], rank: int) -> set[SampleKey]:
        """Return those of these samples that earlier processes finished, and tell the user about them. They run again,
        with their calls from the journal."""
        journal = self._journal
        if journal is None:
            return set()
        self.totals.add_earlier(keys, journal.wall_s)
        done = journal.done(keys)
        # Tell about samples that are done. About the calls of unfinished samples, tell once per journal.
        if done or (journal.calls and self._keys == set(keys)):
            progress_text = f"{len(done):,} of {len(keys):,} done" + (f" on rank {rank}" if self._ranks > 1 else "")
            logger.info(f"mai_cascade: resuming: {progress_text} ({journal.calls:,} calls in {journal.path}).")
        return done

    async def _open_and_run(self, open_sample: Callable[[], Sample], mode: Mode | None) -> Trace:
        async with self._slots:
            return await self._run_one(await asyncio.to_thread(open_sample), mode)

    async def _run_one(self, sample: Sample, mode: Mode | None = None) -> Trace:
        """Run a sample. An unexpected error, for example of a parser, fails this sample and not the run."""
        try:
            trace = await (mode or self._mode)(sample, self.pair)
        except MaiError:
            raise
        except Exception as error:
            logger.opt(exception=error).debug("mai_cascade: unexpected error")
            raise SampleError(
                f"{sample.task} document {sample.doc_id}: {type(error).__name__}: {error}. This is an error in "
                "lmms-eval-mai or in lmms-eval's parser. Please run the command again with --verbosity DEBUG and "
                "report the traceback that the log then shows."
            ) from error
        if trace.min_confidence is not None:
            self._tell_if_uncalibrated(sample.benchmark.name, trace.min_confidence)
            self._check_probability(trace)
        return trace

    def _tell_if_uncalibrated(self, benchmark: str, threshold: float) -> None:
        found = self.config.calibration
        if found is None or benchmark in found.documents or benchmark in self._uncalibrated:
            return
        if threshold == self.pair.first_check.threshold(benchmark):  # a request to a server may have its own
            self._uncalibrated.add(benchmark)
            logger.warning(
                f"mai_cascade: min_confidence={self.config.min_confidence} was chosen with documents of "
                f"{', '.join(found.documents)}, so it promises nothing for other questions ({benchmark})."
            )

    def _check_probability(self, trace: Trace) -> None:
        """Refuse a run whose first check needs a probability that the engine does not report: no sample would ever be
        confident. Raises `ArgumentError`."""
        if self._has_probability:
            return
        (short,) = [call for call in trace.calls if (call.key.side, call.key.stage) == ("large", "short")]
        self._has_probability = short.answer_logprob is not None
        if not self._has_probability and extract_answer(short.text):
            raise ArgumentError(
                "The first check by confidence needs the probability of the large model's short answer, and "
                f"large_engine={self.config.large.engine} did not report it for {short.key}. Use an engine or an "
                "endpoint that gives log-probabilities (logprobs), or verify=agreement."
            )

    def _allowed_errors(self) -> int:
        allowed = self.config.max_errors
        return int(allowed) if allowed >= 1 else int(allowed * len(self._keys))


def _warn_if_uncalibrated(config: Config) -> None:
    """Tell the user if the threshold of the first check was not chosen with these models."""
    found, (small, large) = config.calibration, (config.small.model, config.large.model)
    if config.min_confidence is None:
        text = f"the threshold min_confidence={DEFAULT} is not calibrated for this pair"
    elif found is not None and not found.is_of(small, large):
        text = (
            f"min_confidence={config.min_confidence} was chosen with {found.small} and {found.large}, so it promises "
            f"nothing for {small} and {large}"
        )
    else:
        return
    logger.warning(f"mai_cascade: {text}. lmms-eval-mai calibrate chooses a threshold by your own documents.")
