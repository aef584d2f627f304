"""One evaluation: many samples on engines that are up, with their call store, traces and error budget."""

import asyncio
import dataclasses
import importlib.metadata
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from loguru import logger

from lmms_eval_mai import __version__
from lmms_eval_mai.contract import SIDES, EngineConfig, Model, Side
from lmms_eval_mai.errors import ArgumentError, EngineStartError, MaiError, SampleError, TooManyErrors
from lmms_eval_mai.method import prompts
from lmms_eval_mai.method.agreement import RULES
from lmms_eval_mai.method.calls import Pair
from lmms_eval_mai.method.run import run_sample
from lmms_eval_mai.method.sample import Sample, Trace
from lmms_eval_mai.method.sparse import Sparse
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.doubts import Doubts
from lmms_eval_mai.run.engines import Engines
from lmms_eval_mai.run.outcomes import Failures, Outcome, Progress, progress_bar
from lmms_eval_mai.run.scheduler import gc_frozen, run_samples
from lmms_eval_mai.run.store import SampleKey, Store, digest_of, folder_of

RunSample = Callable[[Sample, Pair], Awaitable[Trace]]


class Evaluation:
    """The samples of one evaluation, of one `Cascade` or of one server. `begin` starts the engines."""

    def __init__(self, engines: Engines, config: Config, store: Store | None = None) -> None:
        """`engines`: may also have engines that the method of `config` does not use. `store`: one that several
        evaluations share; None: this evaluation opens its own. Raises `ArgumentError`, or `StoreError` if the folder of
        the store cannot be written."""
        self.config, self.closed = config, False
        self.traces: list[Trace] = []
        """The answered samples."""
        self.failures = Failures()
        self.resumed = False
        """Whether earlier processes made a part of the calls."""
        self._engines, self._store = engines, store
        self._owns_store = store is None
        self._folder = folder_of(config.store) if store is None else None
        self._called = [engine.side for engine in config.engines()]
        self.pair = pair_of(config, {side: engines.models[side] for side in self._called}, sparse_of(config))
        self._chose_threshold = frozenset(config.calibration.images if config.calibration else ())
        self._doubts = Doubts(config)
        self._closing = threading.Lock()
        self._slots = asyncio.Semaphore(config.max_open_samples)
        """Limits the open samples of `run_one`."""
        self._keys: set[SampleKey] = set()
        self._ranks = 1

    def answer(
        self,
        keys: Sequence[SampleKey],
        open_sample: Callable[[int], Sample],
        decoding: Mapping[str, Any],
        rank: int = 0,
        world_size: int = 1,
        order: Callable[[], Sequence[int]] | None = None,
    ) -> list[Outcome]:
        """Run one sample per key and return their outcomes in the same order.

        `open_sample`: returns the sample for the index of a key; called in threads. `decoding`: generation arguments by
        task. `order`: returns the indices in the order in which samples are opened; called when the engines are up.
        Raises a `MaiError` if the run must stop. All finished calls are in the store then.
        """
        if not keys:
            return []
        self._engines.run(self.begin(decoding, rank, world_size))
        self._keys.update(keys)
        done = self._resume(keys, rank)
        with gc_frozen(), progress_bar(len(keys), shown=rank == 0, done=len(done)) as bar:
            progress = Progress(keys, self.failures, self._store, self._allowed_errors(), bar, done)
            limit, opened = self.config.max_open_samples, range(len(keys)) if order is None else order()
            try:
                self._engines.run(run_samples(opened, open_sample, self._run_one, progress.report, limit))
            except MaiError as error:
                self.failures.add_to_message(error)
                raise
        if (failures := self.failures).count > self._allowed_errors():
            raise TooManyErrors(
                f"{failures.count:,} of {len(self._keys):,} samples failed, and max_errors="
                f"{self.config.max_errors:g} allows {self._allowed_errors():,}:\n{failures}\n"
                "Fix the causes above, or allow more with max_errors=N or a share like max_errors=0.01. The scores "
                "then cover only the answered samples."
            )
        outcomes = [progress.outcomes[index] for index in range(len(keys))]
        self.traces += (outcome for outcome in outcomes if isinstance(outcome, Trace))
        return outcomes

    async def begin(self, decoding: Mapping[str, Any], rank: int = 0, world_size: int = 1) -> None:
        """Start the engines and open the store, if they are not started and open. `Engines.run` runs this. The
        arguments are those of `answer`. Raises `EngineStartError` or `StoreError`; the caller must then call `stop`."""
        if self.closed:
            raise EngineStartError("The evaluation was closed before it began.")
        self._ranks = world_size
        # The model that an endpoint serves is part of its identity, and only the running endpoint knows it.
        endpoints = [engine.side for engine in self.config.engines() if engine.is_endpoint]
        await self._engines.start(endpoints)
        models = {side: digest_of(self._engines.models[side].engine.identity()) for side in self._called}
        if self._store is None and self._folder is not None:
            small, large = (models.get(side, "")[:12] for side in SIDES)
            others = [*self._folder.glob(f"{small}_*.jsonl"), *self._folder.glob(f"*_{large}-*.jsonl")]
            name = f"{small}_{large}-{self._digest_of_run(decoding)}"
            self._store = Store(self._folder / name, rank, world_size, others)
        if self._store is not None and self.pair.store is None:
            self._store.models = models
            self.pair = dataclasses.replace(self.pair, store=self._store)
        await self._engines.start(self._called)
        engines = {side: self._engines.models[side].engine.version() for side in self._called}
        self.pair = dataclasses.replace(self.pair, settings=dataclasses.replace(self.pair.settings, engines=engines))
        self._doubts.about_threshold(engines)

    async def run_one(self, open_sample: Callable[[], Sample], run: RunSample = run_sample) -> Trace:
        """Run one more sample, beside all others. `Engines.submit` or `Engines.run` runs this.

        `max_open_samples` limits how many samples are open; the others wait. `open_sample` is called in a thread.
        Raises its errors, those of `run` and those of the engines.
        """
        async with self._slots:
            return await self._run_one(await asyncio.to_thread(open_sample), run)

    def resume_hint(self) -> str:
        """Return how to resume a run that stopped, or an empty text if there is nothing to resume."""
        if self._folder is None:
            return "store=off: no answers of this run are kept." if self._owns_store and self._keys else ""
        if self._store is None or not self._store.path.exists():
            return ""
        path = self._store.path
        return f"All finished calls are in {path}. To resume, run the same command with the same models again."

    def close(self) -> None:
        """Close the store. Its file stays, and the engines stay up. No further sample can be run. If samples still run,
        call `stop` instead."""
        with self._closing:
            self.closed = True
            if self._store is not None and self._owns_store:
                self._store.close()

    def stop(self) -> None:
        """Stop the engines and close the store."""
        try:
            self._engines.stop()  # a `begin` in another thread is cancelled, or comes later and is refused
        finally:
            self.close()

    def complete(self) -> None:
        """Close the store and remove its file, because the results of the run are saved. Calling it again has no
        effect. With several ranks, this rank does not know the samples of the others, so all files are removed."""
        self.close()
        if self._store is not None and self._owns_store and not self.config.keep_store:
            self._store.remove(self._keys, all_ranks=self._ranks > 1)
        self._store = None

    def _digest_of_run(self, decoding: Mapping[str, Any]) -> str:
        """Return a name for the run that the same command has again: a digest of all that can change an answer or the
        calls that are made, besides the models."""
        unused = {*self.config.without_effect(), *SIDES}
        unused |= set() if self.config.stop_repeats else {"stop_repeats"}  # older runs keep their name
        config = {name: str(value) for name, value in self.config if name not in unused}
        versions = [__version__, importlib.metadata.version("lmms-eval"), prompts.digest(), RULES]
        return digest_of(config, dict(decoding), versions)[:16]

    def _resume(self, keys: Sequence[SampleKey], rank: int) -> set[SampleKey]:
        """Return those of these samples that earlier processes finished, and tell the user about them. They run again,
        with their calls from the store."""
        if self._store is None or not self._store.earlier_calls:
            return set()
        done = self._store.done(keys)
        self.resumed = True
        progress = f"{len(done):,} of {len(keys):,} done" + (f" on rank {rank}" if self._ranks > 1 else "")
        logger.info(f"mai_cascade: resuming: {progress} ({self._store.earlier_calls:,} calls in {self._store.path}).")
        return done

    async def _run_one(self, sample: Sample, run: RunSample = run_sample) -> Trace:
        """Run a sample. An unexpected error, for example of a parser, fails this sample and not the run."""
        try:
            trace = await run(sample, self.pair)
        except MaiError:
            raise
        except Exception as error:
            logger.opt(exception=error).debug("mai_cascade: unexpected error")
            raise SampleError(
                f"{sample.task} document {sample.doc_id}: {type(error).__name__}: {error}. This is an error in "
                "lmms-eval-mai or in lmms-eval's parser. Please run the command again with --verbosity DEBUG and "
                "report the traceback that the log then shows."
            ) from error
        if trace.min_confidence is not None and not self._chose_threshold.isdisjoint(trace.images):
            trace = dataclasses.replace(trace, chose_threshold=True)
        self._doubts.about_trace(trace, sample.documents_of)
        return trace

    def _allowed_errors(self) -> int:
        allowed = self.config.max_errors
        return int(allowed) if allowed >= 1 else int(allowed * len(self._keys))


def pair_of(config: Config, models: Mapping[Side, Model], sparse: Sparse | None) -> Pair:
    return Pair(
        models=models,
        settings=config.settings,
        think=config.think,
        rules=config.rules,
        thresholds=config.thresholds,
        on_overflow=config.on_overflow,
        transfer_answer=config.transfer_answer,
        sparse=sparse,
        log_prompts=config.log_prompts,
    )


def attention_engine(config: Config) -> EngineConfig:
    """Return the engine whose attention selects tokens. Raises `ArgumentError` if it cannot give attention weights."""
    if config.large.engine != "transformers":
        raise ArgumentError(
            f"transfer=sparse needs attention weights of the large model, and large_engine={config.large.engine} "
            "cannot give them: use large_engine=transformers with a checkpoint, or leave transfer out."
        )
    return config.large


def sparse_of(config: Config) -> Sparse | None:
    """Return how tokens are selected with `transfer=sparse`; None without it. Raises `ArgumentError` if the engine
    cannot give attention weights, or if its model does not have the layer."""
    if config.transfer == "full":
        return None
    from transformers import AutoConfig

    engine, given = attention_engine(config), config.sparse_layer
    options = {name: engine.arguments[name] for name in ("revision", "trust_remote_code") if name in engine.arguments}
    depth: int = AutoConfig.from_pretrained(engine.model, **options).get_text_config().num_hidden_layers
    layer = given if isinstance(given, int) else max(1, round(given * depth))
    if layer > depth:
        raise ArgumentError(
            f"sparse_layer={given} does not exist, because the large model has {depth} layers: give a number from 1 to "
            f"{depth}, or a share of the layers such as 0.33."
        )
    logger.info(f"mai_cascade: layer {layer} of {depth} of the large model selects tokens.")
    return Sparse(config.sparse_delta, layer)
