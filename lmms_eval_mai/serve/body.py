"""Reads the body of a request within limits, and runs work until its client disconnects."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from lmms_eval_mai.serve.errors import RequestError
from lmms_eval_mai.serve.settings import Settings

R = TypeVar("R")


class ClientGone(Exception):
    """Raised when the client has closed the connection, so that nobody can get the reply."""

    STATUS = 499
    """The status of such requests in nginx and in the metrics."""


async def read_body(request: Request, settings: Settings) -> bytes:
    """Return the body of a request. Raises `RequestError` if it is too large or comes too slowly, and
    `ClientGone`."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > settings.max_body_bytes:
        raise _too_large(settings)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(settings.body_timeout):
            async for part in request.stream():
                size += len(part)
                if size > settings.max_body_bytes:
                    raise _too_large(settings)
                parts.append(part)
    except TimeoutError:
        text = f"The body of the request did not arrive within {settings.body_timeout:g} s."
        raise RequestError(408, text, "slow_request", headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(parts)


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


def _too_large(settings: Settings) -> RequestError:
    text = f"The body of the request is larger than {settings.max_body_bytes / 2**20:g} MiB (--max-body-mib)."
    return RequestError(413, text, "request_too_large")
