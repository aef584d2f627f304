"""OpenAI-compatible endpoints that serve one model. The only place that retries a request.

All calls of a sample use the same endpoint, because its prefix cache holds the sample's image and question. If that
endpoint does not answer, the next one is used. An endpoint that restarts within `retry_for` seconds loses no call.
"""

import math
import random
import time
import zlib
from asyncio import Semaphore, sleep
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from loguru import logger

from lmms_eval_mai.engines.openai.client import Client, ConnectionFailed, RequestError, RequestTimeout
from lmms_eval_mai.engines.openai.options import OpenAIOptions, proxy_of, read_api_key

R = TypeVar("R")

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.5, 16.0
COOLDOWN_S = 10.0
"""Seconds during which an endpoint that could not be reached is tried last."""


@dataclass(eq=False)
class Endpoint:
    """One endpoint with its client and its limit of open requests."""

    url: str
    client: Client
    slots: Semaphore
    """One slot per open request."""
    failed_at: float = float("-inf")
    """Time of the last connection error since the last answer."""
    has_warned: bool = False
    """Whether an error since the last answer was logged."""


class EndpointPool:
    """Endpoints that serve the same model."""

    def __init__(self, side: str, urls: Sequence[str], options: OpenAIOptions) -> None:
        """Raises `ArgumentError` or `EngineStartError`."""
        self._side = side
        self._retry_for = options.retry_for
        key = read_api_key(options.api_key_env)
        proxies = [proxy_of(url) for url in urls]  # may fail, so before a client is made, which must be closed
        self.endpoints = [
            Endpoint(url, Client(url, key, options.request_timeout, proxy), Semaphore(options.concurrency))
            for url, proxy in zip(urls, proxies, strict=True)
        ]
        self._last_answer_at = float("-inf")

    async def close(self) -> None:
        for endpoint in self.endpoints:
            await endpoint.client.close()

    def endpoints_for(self, sample: str) -> list[Endpoint]:
        """Return all endpoints in the order in which this sample uses them. Endpoints that could not be reached in the
        last `COOLDOWN_S` seconds are at the end."""
        home = zlib.crc32(sample.encode()) % len(self.endpoints)
        order = [*self.endpoints[home:], *self.endpoints[:home]]
        since = time.monotonic() - COOLDOWN_S
        return sorted(order, key=lambda endpoint: endpoint.failed_at > since)

    async def request(self, order: Sequence[Endpoint], send: Callable[[Client], Awaitable[R]]) -> R:
        """Send a request to the first endpoint, and after a transient error to the next one.

        When all endpoints have failed, wait and begin again; the waiting times grow. Give up `retry_for` seconds after
        the first failure, without the seconds in which the request waited for a slot: there it waits for other
        requests, not for a server. Raises the last `RequestError`.
        """
        attempt, first_failure_at, deadline = 0, math.inf, math.inf
        while True:
            endpoint = order[attempt % len(order)]
            queued_at = time.monotonic()
            async with endpoint.slots:
                deadline += time.monotonic() - queued_at
                try:
                    answer = await send(endpoint.client)
                except RequestError as raised:
                    error = raised
                else:
                    self._last_answer_at = time.monotonic()
                    endpoint.failed_at, endpoint.has_warned = float("-inf"), False
                    return answer
            now = time.monotonic()
            if attempt == 0:
                first_failure_at, deadline = now, now + self._retry_for
            if isinstance(error, RequestTimeout | ConnectionFailed):
                endpoint.failed_at = now
            attempt += 1
            pause_s = 0.0 if attempt % len(order) else _pause_s(error, attempt // len(order))
            if not error.is_transient or now + pause_s > deadline:
                if isinstance(error, ConnectionFailed):
                    # An answer in the first second after the first failure does not count: the server may have sent
                    # it before the failure.
                    error.others_answered = self._last_answer_at > first_failure_at + 1
                raise error
            if not endpoint.has_warned:
                endpoint.has_warned = True
                problem = "reports a temporary error" if error.status else "does not answer"
                logger.warning(
                    f"mai_cascade: {endpoint.url} ({self._side}) {problem} ({error}). Its requests are retried for up "
                    f"to {self._retry_for:g} s ({self._side}_retry_for)."
                )
            await sleep(pause_s)


def _pause_s(error: RequestError, rounds: int) -> float:
    """Return the seconds until the next round: exponential with jitter, or longer if the server asks for it."""
    backoff_s = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** min(rounds - 1, 10)) * random.uniform(0.5, 1.0)
    return max(backoff_s, error.retry_after_s)
