"""Answers chat requests on one pair of engines."""

import asyncio
import dataclasses
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.benchmarks import GENERIC
from lmms_eval_mai.paper.cascade import MODES
from lmms_eval_mai.paper.sample import Trace
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.decoding import check_conflict, sampling
from lmms_eval_mai.run.engines import Engines
from lmms_eval_mai.run.run import Run
from lmms_eval_mai.serve.admission import Admission
from lmms_eval_mai.serve.downloads import download_images
from lmms_eval_mai.serve.errors import RequestError
from lmms_eval_mai.serve.metrics import Metrics
from lmms_eval_mai.serve.observer import CallEvent, Observer, observed
from lmms_eval_mai.serve.question import Question, question_of
from lmms_eval_mai.serve.samples import TASK, open_question
from lmms_eval_mai.serve.schema import read_request
from lmms_eval_mai.serve.settings import Settings

IDLE_CHECK_S = 1.0
"""Seconds between two checks that no engine has crashed while it had no calls. A load balancer sends no request to a
server with the status 503, so no call would restart the engine."""


class Service:
    """The engines of a server and its settings."""

    def __init__(self, config: Config, gen_kwargs: Mapping[str, Any], settings: Settings) -> None:
        """`gen_kwargs`: decoding arguments for requests that do not give them. Raises `ArgumentError`,
        `EngineUnavailable` or `EngineStartError`."""
        if config.journal != "off":
            raise ArgumentError(
                "A server has no journal, because its requests have different decoding arguments. Leave journal out."
            )
        check_conflict(gen_kwargs, config)
        sampling(gen_kwargs, config, own_task=True)
        self.config, self.settings = config, settings
        self._gen_kwargs = dict(gen_kwargs)
        self._engines = Engines(config, idle_check_s=IDLE_CHECK_S)
        self._run = Run(self._engines, config)
        self.admission = Admission(config.open_samples(), settings.max_queue)
        self.metrics = Metrics(self.admission, self.up)
        self.asked = 0
        """Number of questions that were asked."""
        self._readers = ThreadPoolExecutor(min(8, os.cpu_count() or 1), "mai-read")
        """Threads that read bodies. asyncio's own threads may all wait for the names of hosts (`downloads.py`)."""

    def start(self) -> None:
        """Start the engines and wait until they are ready. Raises `EngineStartError`; no engine is left running
        then."""
        try:
            self._run.begin({TASK: self._gen_kwargs})
        except BaseException:
            self.stop()
            raise
        GENERIC.parse("A", {"options": ["red", "blue"]})  # imports lmms-eval's parser before the first request

    def stop(self) -> None:
        """Stop the engines. Requests that are not answered yet are cancelled."""
        self._engines.stop()

    def up(self) -> dict[str, bool]:
        """Return for each side whether its engine answers calls. An engine that restarts does not."""
        return {side: engine.is_up() for side, engine in self._engines.of_side.items()}

    async def read(self, body: bytes) -> Question:
        """Return the question in the body of a request. Raises `RequestError`."""
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, lambda: question_of(read_request(body), self.config, self._gen_kwargs, self.settings)
        )

    async def answer(self, question: Question, observe: Observer = lambda event: None) -> Trace:
        """Ask a question and return its trace. To cancel this cancels its downloads and calls. `observe`: gets the
        events of its calls. Raises a `MaiError`, or `RequestError` if an image cannot be downloaded, the request takes
        too long or the engines are stopped."""
        number, self.asked = self.asked, self.asked + 1

        def observe_and_count(event: CallEvent) -> None:
            self.metrics.observe(event)
            observe(event)

        timeout = self.settings.request_timeout
        try:
            async with asyncio.timeout(timeout):
                turns = await download_images(question.turns, self.settings)
                ready = dataclasses.replace(question, turns=turns)
                asked = self._run.submit(
                    lambda: open_question(ready, number, self.settings.max_pixels),
                    lambda sample, pair: MODES[question.mode](sample, observed(pair, observe_and_count)),
                )
                return await _result(asked)
        except TimeoutError:
            text = f"The request was not answered within {timeout:g} s (--request-timeout). Its calls were cancelled."
            raise RequestError(504, text, "request_timeout") from None


async def _result(asked: "Future[Trace]") -> Trace:
    """Return the result of a question. Raises `RequestError` if the engines were stopped meanwhile."""
    try:
        return await asyncio.wrap_future(asked)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        text = "The server is stopping. Send the request again later."
        raise RequestError(503, text, "server_stopping") from None
