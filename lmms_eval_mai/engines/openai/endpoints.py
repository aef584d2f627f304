"""OpenAI-compatible endpoints that serve one model, and the only place where anything is asked again.

All calls of a sample go to the same endpoint, whose prefix cache knows its image and question, and to the next where
that one does not answer. One that is restarted within `retry_for` loses nothing.
"""

import asyncio
import email.utils
import itertools
import os
import random
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, urlsplit

from loguru import logger

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.redaction import one_line

R = TypeVar("R")

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.5, 16.0
CONNECT_S = 5.0
COOLDOWN_S = 10.0
"""Seconds for which an endpoint that could not be reached is asked after the others."""
NO_KEY = "none"
"""What is sent where no key is set: the client insists on one, and servers of one's own ask for none."""


def addresses(side: str, given: str) -> list[str]:
    """`http://a:8000/v1`, or several: `[http://a:8000/v1,http://b:8000/v1]`. Raises `ArgumentError`."""
    urls = [url.strip().strip("\"'").rstrip("/") for url in given.strip().strip("[]").split(",")]
    for url in urls:
        parts = urlsplit(url)
        if parts.username or parts.password or parts.query:
            raise ArgumentError(
                f"{side}: the address of {parts.hostname} holds a user name, a password or a query, which would be "
                f"printed. Put the key into the environment: OPENAI_API_KEY, or the variable {side}_api_key_env names."
            )
        if parts.scheme not in ("http", "https") or not parts.hostname or not _port(parts):
            raise ArgumentError(f"{side}={given} is not the address of an endpoint: give http://HOST:PORT/v1.")
    return urls


def _port(parts: SplitResult) -> bool:
    """Whether its port is one, or none is said."""
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        return False


def key_of(variable: str) -> str:
    """The key in an environment variable, without the line break that `cat` leaves; `NO_KEY` if there is none. Raises
    `ArgumentError`."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ArgumentError(f"The key in {variable} holds characters that no key has: set it anew.")
    return key or NO_KEY


class Endpoint(NamedTuple):
    url: str
    client: Any
    """`openai.AsyncOpenAI`."""
    places: asyncio.Semaphore


class EndpointPool:
    """Endpoints that serve the same model."""

    def __init__(
        self, side: str, urls: Sequence[str], key_env: str, retry_for: float, request_timeout: float, concurrency: int
    ) -> None:
        """`retry_for`, `request_timeout`: seconds. `concurrency`: requests at once to each."""
        import openai

        self._side = side
        self._key = key_of(key_env)
        self._retry_for = retry_for
        timeout = openai.Timeout(request_timeout, connect=CONNECT_S)
        self.endpoints = [
            Endpoint(
                url,
                openai.AsyncOpenAI(base_url=url, api_key=self._key, max_retries=0, timeout=timeout),
                asyncio.Semaphore(concurrency),
            )
            for url in urls
        ]
        self._told: set[str] = set()
        """Endpoints of which it was said that they fail."""
        self._failed: dict[str, float] = {}
        """Endpoints that could not be reached -> when."""
        self._answered = float("-inf")

    async def close(self) -> None:
        for endpoint in self.endpoints:
            await endpoint.client.close()

    def of(self, sample: str) -> list[Endpoint]:
        """The endpoint of a sample, and those after it; last those that could not be reached a moment ago."""
        home = zlib.crc32(sample.encode()) % len(self.endpoints)
        order = [*self.endpoints[home:], *self.endpoints[:home]]
        since = time.monotonic() - COOLDOWN_S
        return sorted(order, key=lambda endpoint: self._failed.get(endpoint.url, 0.0) > since)

    async def ask(self, order: Sequence[Endpoint], send: Callable[[Any], Awaitable[R]]) -> R:
        """Ask the first, after a failure that may pass the next, after all of them again with growing pauses, for
        `retry_for` seconds from the first failure on. Raises the last error, whose `others_answered` says whether
        other requests were answered meanwhile."""
        import openai

        began = 0.0
        for number in itertools.count(1):
            endpoint = order[(number - 1) % len(order)]
            try:
                async with endpoint.places:
                    answer = await send(endpoint.client)
                self._answered = time.monotonic()
                self._told.discard(endpoint.url)
                self._failed.pop(endpoint.url, None)
                return answer
            except (openai.APIConnectionError, openai.APIStatusError) as error:
                now = time.monotonic()
                if isinstance(error, openai.APIConnectionError):
                    self._failed[endpoint.url] = now
                began = began or now
                wait = _wait(error, number // len(order)) if number % len(order) == 0 else 0.0
                if not is_transient(error) or now + wait > began + self._retry_for:
                    # A second, for what had been answered when it began and was still on its way.
                    error.others_answered = self._answered > began + 1  # type: ignore[union-attr]
                    raise
                self._tell(endpoint, error)
            await asyncio.sleep(wait)
        raise AssertionError("unreachable")

    def _tell(self, endpoint: Endpoint, error: Exception) -> None:
        """Once for each time that it begins to fail."""
        if endpoint.url not in self._told:
            self._told.add(endpoint.url)
            what = "does not answer" if not hasattr(error, "status_code") else "is busy or in trouble"
            logger.warning(
                f"mai_cascade: {endpoint.url} ({self._side}) {what} ({self.why(error)}). What it does not answer is "
                f"asked again for up to {self._retry_for:g} s ({self._side}_retry_for)."
            )

    def why(self, error: BaseException) -> str:
        """What an error says, in one line and without the key."""
        return one_line(self.whole(error))

    def whole(self, error: BaseException) -> str:
        """The same at any length."""
        causes = [error, *([error.__cause__] if error.__cause__ is not None else [])]
        texts = [" ".join(str(getattr(one, "message", one)).split()).rstrip(".") for one in causes]
        text = ": ".join(dict.fromkeys(filter(None, texts))) or type(error).__name__
        return text if self._key == NO_KEY else text.replace(self._key, "<key>")


def is_timeout(error: Any) -> bool:
    """Whether an answer did not come within `request_timeout`. It would not come the second time."""
    import openai

    return isinstance(error, openai.APITimeoutError) and "Connect" not in type(error.__cause__).__name__


def is_transient(error: Any) -> bool:
    import openai

    if isinstance(error, openai.APIStatusError):
        return error.status_code in (408, 409, 425, 429) or error.status_code >= 500
    return not is_timeout(error)


def _wait(error: Any, rounds: int) -> float:
    """Seconds until the next round: exponential with jitter, or what the server asks for."""
    backoff = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** min(rounds - 1, 10)) * random.uniform(0.5, 1.0)
    return max(backoff, _told(error))


def _told(error: Any) -> float:
    """`Retry-After`, in seconds or as a date (RFC 9110, 10.2.3)."""
    value = getattr(getattr(error, "response", None), "headers", {}).get("retry-after")
    try:
        return float(value or 0)
    except ValueError:
        date = email.utils.parsedate_tz(value)
        return 0.0 if date is None else email.utils.mktime_tz(date) - time.time()
