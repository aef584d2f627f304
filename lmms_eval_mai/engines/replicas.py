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
from urllib.parse import urlsplit

from loguru import logger

from lmms_eval_mai.errors import ArgumentError

R = TypeVar("R")

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 16.0
CONNECT_S = 5.0
NO_KEY = "none"
"""What is sent where no key is set: the client insists on one, and servers of one's own ask for none."""


def addresses(side: str, given: str) -> list[str]:
    """`http://a:8000/v1`, or several: `[http://a:8000/v1,http://b:8000/v1]`. Raises `ArgumentError`."""
    urls = [url.strip().strip("\"'").rstrip("/") for url in given.strip().strip("[]").split(",")]
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ArgumentError(f"{side}={given} is no address of an endpoint: give http://HOST:PORT/v1.")
        if parts.username or parts.password or parts.query:
            raise ArgumentError(
                f"{side}: the address of {parts.hostname} holds a user name, a password or a query, which would be "
                f"printed. Put the key into the environment: OPENAI_API_KEY, or the variable {side}_api_key_env names."
            )
    return urls


class Endpoint(NamedTuple):
    url: str
    client: Any
    """`openai.AsyncOpenAI`."""
    places: asyncio.Semaphore


class Replicas:
    """Endpoints that serve the same model."""

    def __init__(
        self, side: str, urls: Sequence[str], key_env: str, retry_for: float, request_timeout: float, concurrency: int
    ) -> None:
        """`retry_for`, `request_timeout`: seconds. `concurrency`: requests at once to each."""
        import openai

        self._side = side
        self._key = os.environ.get(key_env) or NO_KEY
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
        self._silent = False

    async def close(self) -> None:
        for endpoint in self.endpoints:
            await endpoint.client.close()

    def of(self, sample: str) -> list[Endpoint]:
        """The endpoint of a sample, and those after it."""
        home = zlib.crc32(sample.encode()) % len(self.endpoints)
        return [*self.endpoints[home:], *self.endpoints[:home]]

    async def ask(self, order: Sequence[Endpoint], send: Callable[[Any], Awaitable[R]]) -> R:
        """Ask the first, after a failure that may pass the next, after all of them again with growing pauses, for
        `retry_for` seconds from the first failure on. Raises the last error."""
        import openai

        deadline = None
        for number in itertools.count(1):
            endpoint = order[(number - 1) % len(order)]
            try:
                async with endpoint.places:
                    answer = await send(endpoint.client)
                self._silent = False
                return answer
            except (openai.APIConnectionError, openai.APIStatusError) as error:
                now = time.monotonic()
                deadline = deadline or now + self._retry_for
                wait = _wait(error, number // len(order)) if number % len(order) == 0 else 0.0
                if not _may_pass(error) or now + wait > deadline:
                    raise
                self._tell(endpoint, error)
            await asyncio.sleep(wait)
        raise AssertionError("unreachable")

    def _tell(self, endpoint: Endpoint, error: Exception) -> None:
        """Once for each time that it stops to answer."""
        if not self._silent:
            self._silent = True
            logger.warning(
                f"mai_cascade: {endpoint.url} ({self._side}) does not answer ({self.why(error)}). It is asked again "
                f"for up to {self._retry_for:g} s ({self._side}_retry_for)."
            )

    def why(self, error: BaseException) -> str:
        """What an error says, in one line and without the key."""
        causes = [error, *([error.__cause__] if error.__cause__ is not None else [])]
        texts = [" ".join(str(getattr(one, "message", one)).split()).rstrip(".") for one in causes]
        text = ": ".join(dict.fromkeys(filter(None, texts))) or type(error).__name__
        text = text if self._key == NO_KEY else text.replace(self._key, "<key>")
        return text if len(text) <= 400 else text[:400] + "..."


def too_slow(error: Any) -> bool:
    """Whether an answer did not come within `request_timeout`. It would not come the second time."""
    import openai

    return isinstance(error, openai.APITimeoutError) and "Connect" not in type(error.__cause__).__name__


def _may_pass(error: Any) -> bool:
    import openai

    if isinstance(error, openai.APIStatusError):
        return error.status_code in (408, 409, 425, 429) or error.status_code >= 500
    return not too_slow(error)


def _wait(error: Any, rounds: int) -> float:
    """Seconds until the next round: exponential with jitter, or what the server asks for."""
    backoff = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(rounds - 1, 10)) * random.uniform(0.5, 1.0)
    return max(backoff, _told(error))


def _told(error: Any) -> float:
    """`Retry-After`, in seconds or as a date (RFC 9110, 10.2.3)."""
    value = getattr(getattr(error, "response", None), "headers", {}).get("retry-after")
    try:
        return float(value or 0)
    except ValueError:
        date = email.utils.parsedate_tz(value)
        return 0.0 if date is None else email.utils.mktime_tz(date) - time.time()
