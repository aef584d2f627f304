"""OpenAI-compatible endpoints that serve one model. The only place that retries a request.

All calls of a sample use the same endpoint, because its prefix cache holds the sample's image and question. If that
endpoint does not answer, the next one is used. An endpoint that restarts within `retry_for` seconds loses no call.
"""

import itertools
import random
import time
import zlib
from asyncio import Semaphore, sleep
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from loguru import logger

from lmms_eval_mai.engines.openai.client import Client, ConnectionFailed, RequestError, RequestTimeout, StatusError
from lmms_eval_mai.engines.openai.options import OpenAIOptions, proxy_of, read_api_key
from lmms_eval_mai.redaction import one_line

R = TypeVar("R")

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.5, 16.0
COOLDOWN_S = 10.0
"""Seconds during which an endpoint that could not be reached is tried last."""


class RequestFailed(Exception):
    """Raised when a request failed, and retries did not help or were not tried."""

    def __init__(self, error: RequestError, others_answered: bool) -> None:
        """`error`: the last error. `others_answered`: other requests were answered while this one was retried."""
        super().__init__(str(error))
        self.error = error
        self.others_answered = others_answered


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
        requests, not for a server. Raises `RequestFailed`.
        """
        first_failure_at = None
        in_queue_s = 0.0
        for attempt in itertools.count(1):
            endpoint = order[(attempt - 1) % len(order)]
            queued_at = time.monotonic()
            async with endpoint.slots:
                if first_failure_at is not None:
                    in_queue_s += time.monotonic() - queued_at
                try:
                    answer = await send(endpoint.client)
                except RequestError as raised:
                    error = raised
                else:
                    self._last_answer_at = time.monotonic()
                    endpoint.failed_at, endpoint.has_warned = float("-inf"), False
                    return answer
            now = time.monotonic()
            first_failure_at = now if first_failure_at is None else first_failure_at
            if isinstance(error, RequestTimeout | ConnectionFailed):
                endpoint.failed_at = now
            rounds, position = divmod(attempt, len(order))
            pause_s = _pause_s(error, rounds) if position == 0 else 0.0
            if not is_transient(error) or now + pause_s > first_failure_at + in_queue_s + self._retry_for:
                # An answer in the first second after the first failure does not count: the server may have sent it
                # before the failure.
                raise RequestFailed(error, self._last_answer_at > first_failure_at + 1) from error
            self._warn_once(endpoint, error)
            await sleep(pause_s)
        raise AssertionError("unreachable")

    def _warn_once(self, endpoint: Endpoint, error: RequestError) -> None:
        """Warn about an endpoint's first failure since its last answer."""
        if not endpoint.has_warned:
            endpoint.has_warned = True
            problem = "reports a temporary error" if isinstance(error, StatusError) else "does not answer"
            logger.warning(
                f"mai_cascade: {endpoint.url} ({self._side}) {problem} ({one_line(str(error))}). Its requests are "
                f"retried for up to {self._retry_for:g} s ({self._side}_retry_for)."
            )


def is_transient(error: RequestError) -> bool:
    """Whether a retry may help."""
    if isinstance(error, StatusError):
        return error.status in (408, 409, 425, 429) or error.status >= 500
    return isinstance(error, ConnectionFailed)


def _pause_s(error: RequestError, rounds: int) -> float:
    """Return the seconds until the next round: exponential with jitter, or longer if the server asks for it."""
    backoff_s = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** min(rounds - 1, 10)) * random.uniform(0.5, 1.0)
    return max(backoff_s, error.retry_after_s if isinstance(error, StatusError) else 0.0)
