"""Answers chat requests on one pair of engines, and counts what they cost."""

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from functools import partial
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, Histogram

from lmms_eval_mai.contract import Call, CallKey, Image, Side
from lmms_eval_mai.errors import ArgumentError, MaiError, UnreadableImage
from lmms_eval_mai.method.calls import Pair
from lmms_eval_mai.method.run import run_sample
from lmms_eval_mai.method.sample import Sample, Trace
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.decoding import sampling
from lmms_eval_mai.run.engines import Engines
from lmms_eval_mai.run.evaluation import Evaluation
from lmms_eval_mai.serve import Settings
from lmms_eval_mai.serve.chat_request import EncodedImage
from lmms_eval_mai.serve.errors import RequestError, to_request_error
from lmms_eval_mai.serve.question import Question

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""Upper limits of the classes of seconds."""


class Metrics:
    """The metrics of one server, for Prometheus, and when each side last answered a call."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(prometheus_client.Counter, registry=self.registry)
        histogram = partial(Histogram, buckets=SECONDS, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        self.replies = counter("mai_replies", "Replies.", ["status"])
        self.exits = counter("mai_exits", "Answered questions.", ["method", "exit"])
        self.tokens = counter("mai_tokens", "Tokens of calls.", ["side", "kind"])
        self.errors = counter("mai_errors", "Failed calls.", ["side", "error"])
        self.request_s = histogram("mai_request_seconds", "Answered requests.", ["exit"])
        self.call_s = histogram("mai_call_seconds", "Calls.", ["side", "prompt"])
        self.requests = gauge("mai_requests", "Requests now.", ["state"])
        self.engine_up = gauge("mai_engine_up", "Whether the engine answers calls.", ["side"])
        self._running: Counter[Side] = Counter()
        """Calls of each side that have not ended."""
        self._answered_at: dict[Side, float] = {}
        """When each side last answered a call, or got one while it had none."""

    def silent_s(self, side: Side) -> float:
        """Return for how many seconds a side has had calls without answering any. 0 if it has no calls."""
        return time.monotonic() - self._answered_at[side] if self._running[side] else 0.0

    def observe(self, key: CallKey, outcome: Call | BaseException | None) -> None:
        """Count a call that has begun (None), is done or has failed. Runs on the event loop of the engines only."""
        side = key.side
        if isinstance(outcome, Call) or (outcome is None and not self._running[side]):
            self._answered_at[side] = time.monotonic()
        self._running[side] += 1 if outcome is None else -1
        if isinstance(outcome, MaiError):
            self.errors.labels(side, type(outcome).__name__).inc()
        if isinstance(outcome, Call):
            self.call_s.labels(side, key.prompt).observe(outcome.total_s)
            for counted in ("prompt", "cached", "output"):
                self.tokens.labels(side, counted).inc(getattr(outcome, f"{counted}_tokens"))


class Service:
    def __init__(self, config: Config, gen_kwargs: Mapping[str, Any], settings: Settings) -> None:
        """`gen_kwargs`: decoding arguments for requests that do not give them. Raises `ArgumentError`,
        `EngineUnavailable` or `EngineStartError`."""
        if config.store != "off":
            raise ArgumentError(f"store={config.store}: a server keeps no calls. Leave store out.")
        sampling(gen_kwargs, config, is_mai_task=True)
        self.config, self.gen_kwargs, self.settings, self.metrics = config, gen_kwargs, settings, Metrics()
        self.is_ready = False
        self.crash: BaseException | None = None
        """Why an engine is not started again. The server ends then."""
        self.asked = 0
        """The number of questions so far, and that of the next one in messages."""
        self._engines = Engines(config)
        self._evaluation = Evaluation(self._engines, config)

    def start(self) -> None:
        """Start the engines and wait until they are ready. Raises `EngineStartError`. Call `stop` in any case."""
        self._engines.run(self._evaluation.begin({"chat": self.gen_kwargs}))
        self.is_ready = True

    def stop(self) -> None:
        """Stop the engines. Requests that are not answered yet are cancelled."""
        self._evaluation.stop()

    def down(self) -> list[Side]:
        """Return the sides whose engines are dead or restart, or have had calls and answered none for as long as a
        request may take."""
        limit, models = self.settings.request_timeout, self._engines.models.items()
        is_up = {side: model.is_up and not model.has_died for side, model in models}
        return [side for side in is_up if not is_up[side] or self.metrics.silent_s(side) > limit]

    def watch_engines(self) -> None:
        """Start the engines again that died without work. One that cannot be started again ends the server."""
        for model in self._engines.models.values():
            if model.has_died:
                self._engines.submit(model.restart_if_dead())
            self.crash = self.crash or model.given_up

    async def answer(self, question: Question) -> AsyncGenerator[Call | Trace]:
        """Ask a question. Yields its finished calls, and its trace at the end. To close this cancels the calls. Raises
        a `MaiError`, or `RequestError` if it takes too long."""
        number, self.asked = self.asked, self.asked + 1
        loop, calls = asyncio.get_running_loop(), asyncio.Queue[Call | None]()

        def on_call(key: CallKey, outcome: Call | BaseException | None) -> None:  # on the event loop of the engines
            self.metrics.observe(key, outcome)
            if isinstance(outcome, Call):
                loop.call_soon_threadsafe(calls.put_nowait, outcome)

        def ask(sample: Sample, pair: Pair) -> Awaitable[Trace]:
            return _ask(sample, dataclasses.replace(_asked_for(question.config, pair), on_call=on_call))

        work = self._evaluation.run_one(lambda: question.opened(number), ask)
        answered = asyncio.wrap_future(self._engines.submit(work))
        answered.add_done_callback(lambda _: calls.put_nowait(None))
        began, limit = loop.time(), self.settings.request_timeout
        try:
            while True:
                async with asyncio.timeout_at(began + limit):
                    call = await calls.get()
                if call is None:
                    break
                yield call
            trace = await answered
        except TimeoutError:
            text = f"The request was not answered within {limit:g} s (--request_timeout). Its calls were cancelled."
            raise RequestError(504, text, "request_timeout") from None
        except UnreadableImage as error:
            raise _with_sizes(to_request_error(error), question.request.images()) from error
        finally:
            answered.cancel()
        self.metrics.exits.labels(question.config.method.name, trace.exit).inc()
        self.metrics.request_s.labels(trace.exit).observe(loop.time() - began)
        yield trace


def _asked_for(config: Config, pair: Pair) -> Pair:
    """Return the pair with what a request may choose. `config`: that of the request."""
    settings = dataclasses.replace(config.settings, engines=pair.settings.engines)
    return dataclasses.replace(pair, thresholds=config.thresholds, settings=settings)


def _with_sizes(reply: RequestError, images: Sequence[EncodedImage]) -> RequestError:
    """Add the sizes of all images: a model does not say which one it refuses."""
    sizes = (f"{number} has {one.size[0]} x {one.size[1]} px" for number, one in enumerate(images, 1))
    reply.message += f" Of the images, number {', '.join(sizes)}."
    return reply


async def _ask(sample: Sample, pair: Pair) -> Trace:
    """Run a sample and free its images. vLLM leaves them in reference cycles, which would keep them until the garbage
    collector comes: in the parser of a chat, and in the frames of an error, which have copies too."""
    images = [part.pixels for message in sample.question for part in message.content if isinstance(part, Image)]
    try:
        return await run_sample(sample, pair)
    except (MaiError, asyncio.CancelledError) as error:
        errors: list[BaseException] = [error]
        for one in errors:
            one.__traceback__ = None
            errors += (other for other in (one.__cause__, one.__context__) if other and other not in errors)
        raise
    finally:
        # A thread of vLLM may still read them for a cancelled call. It gets an error then, which nobody waits for.
        for image in images:
            image.close()
