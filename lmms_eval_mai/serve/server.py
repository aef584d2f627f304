"""Starts the server, and stops it when the process gets SIGTERM or SIGINT."""

import asyncio
import contextlib
import functools
import gc
import signal
import socket
import threading
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI
from loguru import logger

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.serve.app import make_app
from lmms_eval_mai.serve.images import refuse_truncated_images
from lmms_eval_mai.serve.protocol import LimitedProtocol
from lmms_eval_mai.serve.service import Service
from lmms_eval_mai.serve.settings import Settings

BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """Return a socket for this address. It is bound before the engines start, so that a port in use is found at once.
    Raises `ArgumentError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
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
    refuse_truncated_images()  # after lmms-eval was imported
    # The imports make hundreds of thousands of objects, which stay. The garbage collector must not visit them again
    # and again, because all requests wait then.
    gc.collect()
    gc.freeze()
    try:
        bound.listen(BACKLOG)  # requests wait from now on
        host, port = bound.getsockname()[:2]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        admission = service.admission
        logger.info(
            f"mai_cascade: serving {service.settings.model_name} on {address}/v1: {admission.max_open} requests at the "
            f"same time, and up to {admission.max_queue} that wait. Ctrl-C or SIGTERM stops the server."
        )
        server = Server(make_app(service), service.settings)
        asyncio.run(server.serve(sockets=[bound]))
    finally:
        service.stop()
    return server.signal


class Server(uvicorn.Server):
    """uvicorn's server, with a process that ends by itself after a signal."""

    signal = signal.SIGTERM
    """The signal that stopped the server."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=functools.partial(LimitedProtocol, head_timeout=settings.body_timeout),  # type: ignore[arg-type]
                ws="none",
                log_config=None,
                log_level="critical",  # its errors would have the message of an exception, and so texts of prompts
                access_log=False,
                lifespan="off",
                backlog=BACKLOG,
                # Each request has its own limit, so this one is only for clients that do not take their replies.
                timeout_graceful_shutdown=int(settings.request_timeout) + 5,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGINT and SIGTERM. uvicorn's own function sends the signal again at the end, so that the process is
        killed before the engines are stopped."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: object) -> None:
        """Stop accepting connections. After a second SIGINT, do not wait for the requests in flight."""
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
