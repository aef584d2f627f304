"""`--model mai_cascade`: lmms-eval's requests in, its results out. No algorithm.

The engines start with the first request that needs them, serve every later call of `generate_until` and
`generate_until_multi_round`, and stop in `clean()`, which lmms-eval calls once, before it scores.
"""

import asyncio
import contextlib
import gc
import itertools
import os
import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import torch
from lmms_eval.api.instance import GenerationResult, Instance
from lmms_eval.api.model import lmms
from loguru import logger
from tqdm import tqdm

from lmms_eval_mai import report
from lmms_eval_mai.benchmarks import extract_answer
from lmms_eval_mai.cascade import MODES, Pair
from lmms_eval_mai.config import SIDES, Config, parse
from lmms_eval_mai.engines.base import Engine
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.errors import ArgumentError, MaiError
from lmms_eval_mai.metering import Meter, TraceCounts
from lmms_eval_mai.requests import is_padding, open_sample, sampling, task_of
from lmms_eval_mai.running import LoopThread, walk_all
from lmms_eval_mai.sample import Sample, Trace


class Rounds(list):  # type: ignore[type-arg]
    """The texts of a two-stage task's calls, the answer last, as `generate_until_multi_round` returns them.

    lmms-eval's response cache calls `.strip()` on the text of a `GenerationResult`
    (caching/response_cache.py, `_is_valid_response`) and stores what it gets as JSON.
    """

    def strip(self) -> str:
        return str(self[-1]).strip()


class MaiCascade(lmms):
    """The paper's cascade as an evaluated model. Its arguments are those of `config.Config`."""

    is_simple = False

    def __init__(
        self, batch_size: Any = None, max_batch_size: Any = None, device: Any = None, **arguments: Any
    ) -> None:
        """`batch_size`, `max_batch_size` and `device` are lmms-eval's and say nothing here: vLLM batches what is
        ready, `max_open_samples` bounds it. Raises `ArgumentError`, `EngineUnavailable` or `EngineStartError`."""
        super().__init__()
        self.config: Config = parse(arguments)
        self._engines: dict[str, Engine] = {side.side: build(self.config, side) for side in self.config.sides()}
        for engine in self._engines.values():
            engine.check()
        self._loop: LoopThread | None = None
        self._running = False
        self._meter = Meter()
        self._wall_s = 0.0

    @property
    def device(self) -> torch.device:
        """Where lmms-eval puts the tensors it gathers between ranks."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if distributed and torch.distributed.get_backend() == "nccl":
            return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        return torch.device("cpu")

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        self._stop()
        raise MaiError("mai_cascade generates answers and has no loglikelihood: choose tasks of type generate_until.")

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:
        """One result a request, in order; the trace of each sample is in its token counts."""
        with self._stopped_on_error():
            traces = self._walk(requests)
        return [self._result(request, trace) for request, trace in zip(requests, traces, strict=True)]

    def generate_until_multi_round(self, requests: list[Instance]) -> list[GenerationResult]:
        """The `_s2` tasks. The cascade drives their rounds itself; every text of a sample is returned, answer last."""
        with self._stopped_on_error():
            for request in requests:
                if task_of(request).variant is None:
                    raise ArgumentError(
                        f"Task {request.args[4]} asks in rounds of its own, which mai_cascade does not drive: "
                        "choose tasks of type generate_until, or one of the _s2 tasks of lmms-eval-mai."
                    )
            return [_rounds(trace) for trace in self._walk(requests)]

    def clean(self) -> None:
        """Stop both engines, fill lmms-eval's throughput table and print our own."""
        self._stop()
        if self._meter.tasks:
            report.log_throughput(self._meter, self.config, self._wall_s)
            print(report.table(self._meter, self.config, self._wall_s, self.rank, self.world_size), flush=True)
            self._meter, self._wall_s = Meter(), 0.0
        super().clean()

    def _result(self, request: Instance, trace: Trace | None) -> GenerationResult:
        if trace is None:
            return GenerationResult("")
        # Our tasks take the answer out of its brackets themselves. Others do not know them, and did not ask for them
        # where their own prompt was used.
        ours = task_of(request).variant is not None
        text = trace.answer.text if ours or trace.answer.key.stage == "task" else extract_answer(trace.answer.text)
        return GenerationResult(text, TraceCounts.of(trace))

    def _walk(self, requests: Sequence[Instance]) -> list[Trace | None]:
        """One trace a request; None for padding."""
        for request in {request.args[4]: request for request in requests}.values():
            # Refuse what cannot work before the engines start.
            sampling(request.args[2], task_of(request).variant, self.config.think, self.config.max_new_tokens)
        traces: list[Trace | None] = [None] * len(requests)
        todo = [(index, repeat) for index, repeat in enumerate(_repeats(requests)) if not is_padding(requests[index])]
        if not todo:
            return traces
        self._run(self._start())
        # Alone, a model stands on both sides; its mode calls one of them.
        small, large = (self._engines.get(side) or next(iter(self._engines.values())) for side in SIDES)
        pair = Pair(small, large, self.config.think, self.config.rules)
        mode = MODES[self.config.mode]
        models = {side.side: side.model for side in self.config.sides()}

        def open_(number: int) -> Sample:
            index, repeat = todo[number]
            return open_sample(requests[index], repeat, self.task_dict, self.config.think, self.config.max_new_tokens)

        def done(number: int, trace: Trace) -> None:
            traces[todo[number][0]] = trace
            self._meter.add(trace)
            report.log_call_usage(trace, models)
            bar.set_postfix(self._meter.exits(), refresh=False)
            bar.update()

        began = time.perf_counter()
        with _imports_out_of_gc(), tqdm(total=len(todo), desc="mai_cascade", disable=self.rank != 0) as bar:
            self._run(walk_all(len(todo), open_, lambda sample: mode(sample, pair), done, self.config.max_open_samples))
        self._wall_s += time.perf_counter() - began
        return traces

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """On the engines' loop, to the end."""
        if self._loop is None:
            self._loop = LoopThread()
        self._loop.run(coroutine)

    @contextlib.contextmanager
    def _stopped_on_error(self) -> Iterator[None]:
        """Whatever goes wrong inside, a refused second batch of requests too, no engine is left behind: lmms-eval
        does not call `clean()` then."""
        try:
            yield
        except BaseException:
            self._stop()
            raise

    async def _start(self) -> None:
        if self._running:
            return
        self._running = True
        for engine in self._engines.values():  # one after the other: each measures the memory that is free
            await engine.start()

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        self._running = False
        if loop is not None:
            try:
                loop.run(_close_all(list(self._engines.values())))
            finally:
                loop.close()


async def _close_all(running: list[Engine]) -> None:
    for outcome in await asyncio.gather(*(engine.close() for engine in running), return_exceptions=True):
        if isinstance(outcome, Exception):
            logger.warning(f"mai_cascade: an engine did not stop cleanly: {outcome}")


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


def _rounds(trace: Trace | None) -> GenerationResult:
    if trace is None:
        return GenerationResult(Rounds(["", ""]))  # type: ignore[arg-type]
    others = [call.text for call in trace.calls if call is not trace.answer]
    return GenerationResult(Rounds([*others, trace.answer.text]), TraceCounts.of(trace))  # type: ignore[arg-type]


def _repeats(requests: Sequence[Instance]) -> list[int]:
    """lmms-eval repeats a request by listing the same object several times in a row: 0, 1, ... for each."""
    return [repeat for _, same in itertools.groupby(requests, key=id) for repeat, _ in enumerate(same)]
