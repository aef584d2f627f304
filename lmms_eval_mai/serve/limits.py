"""The limits of the server: its settings, the number of requests, and the size and the time of their bodies."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from lmms_eval_mai.serve.errors import RequestError

R = TypeVar("R")

RETRY_AFTER_S = 1
"""Seconds until a full server may have a place again."""


@dataclass(frozen=True)
class Settings:
    """The settings of the server, except those of the engines (`run.config.Config`)."""

    model_name: str
    """Name of the pair in `/v1/models` and in the field `model` of requests."""
    max_queue: int = 256
    """Number of requests that may wait for a free place among the open samples. Further requests get the status 429."""
    request_timeout: float = 600.0
    """Seconds from the end of a request's body to its reply, the wait in the queue included. A request that takes
    longer gets the status 504, and its calls are cancelled."""
    body_timeout: float = 30.0
    """Seconds in which a client must send the head of its request, and then the body."""
    sending_timeout: float = 30.0
    """Seconds in which a client must take what was sent to it."""
    max_connections: int = 4096
    """Connections at the same time. Further ones get the status 503."""
    max_body_bytes: int = 20 * 2**20
    """Largest body of a request."""
    max_pixels: int = 64_000_000
    """Pixels of all images of a request together. They are counted before an image is decoded."""
    max_images: int = 64
    """Images of a request."""
    max_characters: int = 1_000_000
    """Characters of all texts of a request together."""
    api_key: str | None = field(default=None, repr=False)
    """The key that requests to `/v1` must have. None: no key is needed."""
    allowed_hosts: tuple[str, ...] = ("*",)
    """Names that requests may give to the server in the header `Host`. `*`: any name."""


class Admission:
    """Limits the requests that are not answered yet. All calls must come from one thread.

    A request counts from the end of its body, so heads without a body take no place. The engines answer `max_open`
    requests at the same time, and the others wait. Bodies that are still arriving have together at most the bytes of
    one largest body for each free place.
    """

    def __init__(self, max_open: int, settings: Settings) -> None:
        self.max_open = max_open
        self.count = 0
        """Number of admitted requests."""
        self._settings = settings
        self._places = max_open + settings.max_queue
        self._arriving = 0
        """Bytes of bodies that are not complete yet."""

    def _check(self) -> None:
        free = self._places - self.count
        if free <= 0 or self._arriving > free * self._settings.max_body_bytes:
            text = (
                f"The server is full: it takes {self.max_open:,} requests at the same time (max_open_samples) and "
                f"{self._settings.max_queue:,} that wait (--max-queue). Send the request again later."
            )
            raise RequestError(429, text, "queue_full", headers={"Retry-After": str(RETRY_AFTER_S)})

    async def body(self, request: Request) -> bytearray:
        """Return the body of a request. Raises `RequestError` if there is no place, or if the body is not JSON, too
        large or too slow, and `ClientGone`."""
        self._check()
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            # A web page may send other types to a server on the same machine, without asking it first.
            text = "The body must be JSON. Send it with the header Content-Type: application/json."
            raise RequestError(415, text, "unsupported_media_type")
        limit, timeout = self._settings.max_body_bytes, self._settings.body_timeout
        too_large = f"The body of the request is larger than {limit / 2**20:g} MiB (--max-body-mib)."
        if int(request.headers.get("content-length", "0")[:20]) > limit:
            raise RequestError(413, too_large, "request_too_large")
        body = bytearray()
        try:
            async with asyncio.timeout(timeout):
                async for part in request.stream():
                    body += part
                    self._arriving += len(part)
                    self._check()
                    if len(body) > limit:
                        raise RequestError(413, too_large, "request_too_large")
        except TimeoutError:
            text = f"The body of the request did not arrive within {timeout:g} s."
            raise RequestError(408, text, "slow_request", headers={"Connection": "close"}) from None
        except ClientDisconnect:
            raise ClientGone from None
        finally:
            self._arriving -= len(body)
        return body

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request while the block runs. Raises `RequestError` if there is no place."""
        self._check()
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1


class ClientGone(Exception):
    """Raised when the client has closed the connection, so that nobody can get the reply."""

    STATUS = 499
    """The status of such requests in nginx and in the metrics."""


async def until_disconnected(receive: Callable[[], Awaitable[Any]], work: Awaitable[R]) -> R:
    """Return the result of the work. If the client disconnects before, the work is cancelled. `receive`: that of a
    request whose body was read. Raises `ClientGone` then, and the errors of the work."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
