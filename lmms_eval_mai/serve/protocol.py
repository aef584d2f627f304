"""uvicorn's HTTP protocol, with limits for the head of a request: its first line and its headers.

uvicorn limits neither the time of a head nor, with httptools, its size. A client without a key could fill the memory,
or keep all sockets open.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

MAX_HEAD = 64 * 2**10
"""Bytes of a head. That of uvicorn's other parser, h11."""
MAX_IGNORED = 64 * 2**20
"""Bytes that a client may send after the reply to a request whose body was not read."""

_Protocol: Any = AutoHTTPProtocol


class LimitedProtocol(_Protocol):
    """Closes a connection whose client sends a too large head, or does not send its head in time."""

    def __init__(self, *rest: Any, head_timeout: float, **named: Any) -> None:
        """`head_timeout`: seconds in which a head must arrive. The others are those of uvicorn."""
        super().__init__(*rest, **named)
        self._head_timeout = head_timeout
        self._head_size = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle  # the last request whose head is complete
        is_body = cycle is not None and cycle.more_body and not cycle.response_complete
        super().data_received(data)
        if is_body or self.cycle is not cycle:
            self._end_head()
            return
        self._expect_head()
        self._head_size += len(data)
        is_ignored_body = cycle is not None and cycle.more_body
        if self._head_size > (MAX_IGNORED if is_ignored_body else MAX_HEAD):
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_timeout, self._close)

    def _end_head(self) -> None:
        self._head_size = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
