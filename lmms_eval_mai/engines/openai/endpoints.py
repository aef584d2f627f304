"""OpenAI-compatible endpoints that serve one model. The only place that retries a request.

All calls of a sample use the same endpoint, because its prefix cache holds the sample's image and question. If that
endpoint does not answer, the next one is used. An endpoint that restarts within `retry_for` seconds loses no call.
"""

import email.utils
import itertools
import os
import random
import time
import zlib
from asyncio import Semaphore, sleep
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar
from urllib.parse import SplitResult, urlsplit

from loguru import logger

from lmms_eval_mai.engines.openai.client import Client, ConnectionFailed, RequestError, RequestTimeout, StatusError
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.redaction import one_line

R = TypeVar("R")

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.5, 16.0
COOLDOWN_S = 10.0
"""Seconds during which an endpoint that could not be reached is tried last."""
PLACEHOLDER_KEY = "none"
"""Sent if no key is set: the client requires a key, and private servers need none."""


class RequestFailed(Exception):
    """Raised when a request failed, and retries did not help or were not tried."""

    def __init__(self, error: RequestError, others_answered: bool) -> None:
        """`error`: the last error. `others_answered`: other requests were answered while this one was retried."""
        super().__init__(str(error))
        self.error = error
        self.others_answered = others_answered


class Endpoint(NamedTuple):
    """One endpoint with its client and its limit of open requests."""

    url: str
    client: Client
    slots: Semaphore
    """One slot per open request."""


class EndpointPool:
    """Endpoints that serve the same model."""

    def __init__(
        self, side: str, urls: Sequence[str], key_env: str, retry_for: float, request_timeout: float, concurrency: int
    ) -> None:
        """`retry_for`, `request_timeout`: seconds. `concurrency`: open requests per endpoint."""
        self._side = side
        self._key = read_api_key(key_env)
        self._retry_for = retry_for
        self.endpoints = [
            Endpoint(url, Client(url, self._key, request_timeout), Semaphore(concurrency)) for url in urls
        ]
        self._warned: set[str] = set()
        """Endpoints with a warning since their last answer."""
        self._last_connection_error: dict[str, float] = {}
        """Endpoint -> time of its last connection error. Its next answer removes the entry."""
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
        return sorted(order, key=lambda endpoint: self._last_connection_error.get(endpoint.url, 0.0) > since)

    async def request(self, order: Sequence[Endpoint], send: Callable[[Client], Awaitable[R]]) -> R:
        """Send a request to the first endpoint, and after a transient error to the next one.

        When all endpoints have failed, wait and begin again; the waiting times grow. Give up `retry_for` seconds after
        the first failure. Raises `RequestFailed`.
        """
        first_failure_at = 0.0
        for attempt in itertools.count(1):
            endpoint = order[(attempt - 1) % len(order)]
            try:
                async with endpoint.slots:
                    answer = await send(endpoint.client)
                self._record_answer(endpoint)
                return answer
            except RequestError as error:
                now = time.monotonic()
                first_failure_at = first_failure_at or now
                if isinstance(error, RequestTimeout | ConnectionFailed):
                    self._last_connection_error[endpoint.url] = now
                rounds, position = divmod(attempt, len(order))
                pause_s = _pause_s(error, rounds) if position == 0 else 0.0
                if not is_transient(error) or now + pause_s > first_failure_at + self._retry_for:
                    # An answer in the first second after the first failure does not count: the server may have sent it
                    # before the failure.
                    raise RequestFailed(error, self._last_answer_at > first_failure_at + 1) from error
                self._warn_once(endpoint, error)
            await sleep(pause_s)
        raise AssertionError("unreachable")

    def error_text(self, error: BaseException) -> str:
        """Return the error's message in one line, without the key."""
        return one_line(self.full_error_text(error))

    def full_error_text(self, error: BaseException) -> str:
        """Return the error's message at any length, without the key."""
        text = " ".join(str(error).split()).rstrip(".")
        return text if self._key == PLACEHOLDER_KEY else text.replace(self._key, "<key>")

    def _record_answer(self, endpoint: Endpoint) -> None:
        self._last_answer_at = time.monotonic()
        self._warned.discard(endpoint.url)
        self._last_connection_error.pop(endpoint.url, None)

    def _warn_once(self, endpoint: Endpoint, error: Exception) -> None:
        """Warn about an endpoint's first failure since its last answer."""
        if endpoint.url not in self._warned:
            self._warned.add(endpoint.url)
            problem = "reports a temporary error" if isinstance(error, StatusError) else "does not answer"
            logger.warning(
                f"mai_cascade: {endpoint.url} ({self._side}) {problem} ({self.error_text(error)}). Its requests are "
                f"retried for up to {self._retry_for:g} s ({self._side}_retry_for)."
            )


def parse_addresses(side: str, given: str) -> list[str]:
    """Read one address, `http://a:8000/v1`, or several, `[http://a:8000/v1,http://b:8000/v1]`. Raises
    `ArgumentError`."""
    urls = [url.strip().strip("\"'").rstrip("/") for url in given.strip().strip("[]").split(",")]
    for url in urls:
        parts = urlsplit(url)
        if parts.username or parts.password or parts.query:
            raise ArgumentError(
                f"{side}: the address of {parts.hostname} contains a user name, a password or a query, which lmms-eval "
                "would print. Remove this part from the address. Put the key into the environment variable "
                f"OPENAI_API_KEY, or into the one that {side}_api_key_env names."
            )
        if parts.scheme not in ("http", "https") or not parts.hostname or not _has_valid_port(parts):
            shown = url.partition("?")[0].rpartition("@")[2]  # a wrong address may have a password that was not found
            raise ArgumentError(f"{side}={shown} is not the address of an endpoint: expected http://HOST:PORT/v1.")
    return urls


def _has_valid_port(parts: SplitResult) -> bool:
    """Whether the address has a valid port or none."""
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        return False


def read_api_key(variable: str) -> str:
    """Return the key in an environment variable, or `PLACEHOLDER_KEY` if it is not set. Raises `ArgumentError`."""
    key = os.environ.get(variable, "").strip()  # a mounted secret may end with a line break
    if not (key.isascii() and key.isprintable()):
        raise ArgumentError(
            f"The key in {variable} contains characters that are not printable ASCII. Set {variable} to a valid key."
        )
    return key or PLACEHOLDER_KEY


def is_transient(error: RequestError) -> bool:
    """Whether a retry may help."""
    if isinstance(error, StatusError):
        return error.status in (408, 409, 425, 429) or error.status >= 500
    return isinstance(error, ConnectionFailed)


def _pause_s(error: RequestError, rounds: int) -> float:
    """Return the seconds until the next round: exponential with jitter, or longer if the server asks for it."""
    backoff_s = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** min(rounds - 1, 10)) * random.uniform(0.5, 1.0)
    return max(backoff_s, _retry_after_s(error))


def _retry_after_s(error: RequestError) -> float:
    """Return the header `Retry-After`, which is in seconds or a date (RFC 9110, 10.2.3), in seconds."""
    value = error.retry_after if isinstance(error, StatusError) else ""
    try:
        return float(value or 0)
    except ValueError:
        date = email.utils.parsedate_tz(value)
        return 0.0 if date is None else email.utils.mktime_tz(date) - time.time()
