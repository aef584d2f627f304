"""Starts the server and its connections, and stops it when the process gets SIGTERM or SIGINT."""

import asyncio
import dataclasses
import functools
import gc
import resource
import signal
import socket
from typing import Any

import h11
import uvicorn
from loguru import logger
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.serve.app import make_app
from lmms_eval_mai.serve.images import prepare_decoding
from lmms_eval_mai.serve.limits import Settings
from lmms_eval_mai.serve.service import Service

BACKLOG = 2048
MAX_HEAD = 64 * 2**10
"""Bytes of the headers of a request. h11's own limit of 16 KiB is too small for some proxies."""
DESCRIPTORS = 65_536
"""File descriptors that the process asks for. Linux gives 1,024 by default."""
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 10\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
"""The reply to a connection too many."""


def bind(host: str, port: int) -> socket.socket:
    """Return a socket for this address. It is bound before the engines start, so that a port in use is found at once.
    Raises `ArgumentError`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(f"The server cannot use {host}:{port} ({reason}). Give another --host or --port.") from None
    return bound


def run(service: Service, bound: socket.socket) -> int:
    """Start the engines and answer requests until SIGTERM or SIGINT. Requests in flight are answered first. A second
    SIGINT stops at once. Returns the number of the signal. Raises `EngineStartError`."""
    service.start()
    prepare_decoding()  # after lmms-eval was imported
    # The imports make hundreds of thousands of objects, which stay. The garbage collector must not visit them again
    # and again, because all requests wait then.
    gc.collect()
    gc.freeze()
    try:
        server = Server(make_app(service), service.settings)
        bound.listen(server.config.backlog)  # requests wait from now on
        host, port = bound.getsockname()[:2]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        settings = service.settings
        logger.info(
            f"mai_cascade: serving {settings.model_name} on {address}/v1: {service.admission.max_open} requests at the "
            f"same time, and up to {settings.max_queue} that wait. Ctrl-C or SIGTERM stops the server."
        )
        asyncio.run(server.serve(sockets=[bound]))
    finally:
        service.stop()
    return server.signal


class Server(uvicorn.Server):
    """uvicorn's server, with a process that ends by itself after a signal."""

    signal = signal.SIGTERM
    """The signal that stopped the server."""

    def __init__(self, app: Starlette, settings: Settings) -> None:
        # asyncio accepts up to `backlog` connections at once. Without a free descriptor it logs an error for each of
        # them, again and again. The other descriptors are for the engines.
        descriptors = raise_descriptor_limit()
        settings = dataclasses.replace(settings, max_connections=min(settings.max_connections, descriptors // 2))
        super().__init__(
            uvicorn.Config(
                app,
                http=functools.partial(LimitedProtocol, settings=settings),  # type: ignore[arg-type]
                h11_max_incomplete_event_size=MAX_HEAD,
                ws="none",
                log_config=None,
                log_level="critical",  # its errors would have the message of an exception, and so texts of prompts
                access_log=False,
                lifespan="off",
                backlog=min(BACKLOG, descriptors // 4),
                timeout_graceful_shutdown=int(settings.request_timeout) + 5,  # each request has its own limit
            )
        )

    def handle_exit(self, sig: int, frame: object) -> None:
        """Stop accepting connections. After a second SIGINT, do not wait for the requests in flight.

        uvicorn's own function lets uvicorn send the signal again at the end, so that the process is killed before the
        engines are stopped.
        """
        if not self.should_exit:
            self.signal = signal.Signals(sig)
        elif sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the requests in flight and close their connections. The log is written here and not in `handle_exit`,
        because a signal may arrive while this thread writes to the log, and loguru raises an error then."""
        logger.info("mai_cascade: the server is stopping. Requests in flight are answered first.")
        await super().shutdown(sockets)


def raise_descriptor_limit() -> int:
    """Let this process open more files and connections, if it may. Returns how many it can open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = DESCRIPTORS if hard == unlimited else min(hard, DESCRIPTORS)
    if soft != unlimited and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


class LimitedProtocol(H11Protocol):
    """uvicorn's HTTP protocol for one connection, with limits that uvicorn does not have.

    Without them, a client without a key could keep all connections open, or fill the memory with unread replies. h11
    itself limits the size of a head.
    """

    def __init__(self, *rest: Any, settings: Settings, **named: Any) -> None:
        """The other arguments are those of uvicorn."""
        super().__init__(*rest, **named)
        self._settings = settings
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """What the client must do -> the end of its time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # `pause_writing` as soon as the client's machine takes no more
        if len(self.connections) > self._settings.max_connections:
            transport.write(BUSY)
            transport.close()
        else:
            self._expect("head", self._settings.body_timeout)

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle  # the last request whose head is complete
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # a wrong body, after the reply was sent
            self.transport.abort()
        if self.cycle is not cycle:
            self._end("head")
        if self.cycle is None or self.cycle.response_complete:  # a part of a head, or of a body that nobody reads
            self._expect("head", self._settings.body_timeout)
        elif not self.cycle.more_body and self.conn.trailing_data[0].strip():
            # The client asks again before it has its reply. uvicorn reads no more then, and so it would not see the
            # end of the connection, which cancels the request. No usual client does this.
            self.transport.abort()

    def pause_writing(self) -> None:
        """Wait for a client that does not read, also if the connection is closed when it has read all."""
        super().pause_writing()
        self._expect("read", self._settings.sending_timeout)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end("read")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("head")
        self._end("read")
        super().connection_lost(exc)

    def _expect(self, what: str, seconds: float) -> None:
        if what not in self._timers:
            self._timers[what] = self.loop.call_later(seconds, self.transport.abort)

    def _end(self, what: str) -> None:
        if what in self._timers:
            self._timers.pop(what).cancel()
