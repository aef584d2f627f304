"""Answers chat requests on one pair of engines: from the body of a request to the trace of its question."""

import asyncio
import dataclasses
import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lmms_eval_mai.contract import ContentPart, Image, Message, Side
from lmms_eval_mai.engines.messages import merge_adjacent_text
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.benchmarks import GENERIC
from lmms_eval_mai.paper.cascade import MODES
from lmms_eval_mai.paper.sample import Sample, Trace
from lmms_eval_mai.paper.sample_run import Pair
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.decoding import check_conflict, sampling
from lmms_eval_mai.run.engines import Engines
from lmms_eval_mai.run.run import Run
from lmms_eval_mai.serve.errors import RequestError, bad_request
from lmms_eval_mai.serve.images import THREADS, EncodedImage, decode_image
from lmms_eval_mai.serve.limits import Admission, Settings
from lmms_eval_mai.serve.metrics import CallEvent, Metrics, Observer, observed
from lmms_eval_mai.serve.question import Question, question_of
from lmms_eval_mai.serve.schema import read_request

TASK = "chat"
"""Name of the task in messages, traces and scripts."""
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
        self.admission = Admission(config.max_open_samples, settings)
        self.metrics = Metrics(self.admission, self._engines.of_side, self.up)
        self.asked = 0
        """Number of questions that were asked."""
        self._readers = ThreadPoolExecutor(THREADS, "mai-read")

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
        self._run.stop()

    def up(self) -> dict[Side, bool]:
        """Return for each side whether its engine answers calls. An engine that restarts does not, and neither does one
        that has calls and has answered none for as long as a request may take."""
        limit = self.settings.request_timeout
        engines = self._engines.of_side.items()
        return {side: engine.is_up() and self.metrics.silent_s(side) <= limit for side, engine in engines}

    async def read(self, body: bytearray) -> Question:
        """Return the question in the body of a request. Raises `RequestError`."""
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, lambda: question_of(read_request(body), self.config, self._gen_kwargs, self.settings)
        )

    async def answer(self, question: Question, observe: Observer = lambda event: None) -> Trace:
        """Ask a question and return its trace. To cancel this cancels its calls. `observe`: gets the events of its
        calls. Raises a `MaiError`, or `RequestError` if an image cannot be decoded, the request takes too long or the
        engines are stopped."""
        number, self.asked = self.asked, self.asked + 1

        def observe_and_count(event: CallEvent) -> None:
            self.metrics.observe(event)
            observe(event)

        async def ask(sample: Sample, pair: Pair) -> Trace:
            try:
                pair = dataclasses.replace(pair, first_check=question.first_check)
                return await MODES[question.mode](sample, observed(pair, observe_and_count))
            finally:
                # vLLM leaves each image in a reference cycle, which keeps its pixels until a later garbage collection.
                for part in itertools.chain.from_iterable(message.content for message in sample.question):
                    if isinstance(part, Image):
                        part.pixels.close()

        timeout = self.settings.request_timeout
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.wrap_future(self._run.submit(lambda: open_question(question, number), ask))
        except ArgumentError as error:  # the engine gives no probability
            raise bad_request(str(error), param="mai.verify") from None
        except TimeoutError:
            text = f"The request was not answered within {timeout:g} s (--request-timeout). Its calls were cancelled."
            raise RequestError(504, text, "request_timeout") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the request is cancelled, and not the engines' work for it
                raise
            text = "The server is stopping. Send the request again later."
            raise RequestError(503, text, "server_stopping") from None


def open_question(question: Question, number: int) -> Sample:
    """Decode the images of a question and return its sample. This blocks, so run it in a thread. `number`: the number
    of the request in messages. Raises `RequestError`."""

    def part_of(part: str | EncodedImage) -> ContentPart:
        return part if isinstance(part, str) else decode_image(part)

    messages = tuple(
        Message(turn.role, tuple(merge_adjacent_text(part_of(part) for part in turn.content if part)))
        for turn in question.turns
    )
    # The first call imports lmms-eval's parser, which takes seconds. Do not do this on the event loop.
    question.benchmark.parse("", question.doc)
    return Sample(
        task=TASK,
        doc_id=number,
        repeat=0,
        question=messages,
        doc=question.doc,
        benchmark=question.benchmark,
        kind=question.kind,
        variant=question.variant,
        two_stage=False,
        sampling=question.sampling,
        own_prompt=messages if question.variant is None else (),
    )
