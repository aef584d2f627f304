"""Starts the server and stops it: after SIGTERM or SIGINT, or when an engine cannot be started again."""

import asyncio
import gc
import resource
import socket
import time
from typing import Any

import uvicorn
from loguru import logger

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.serve.app import App
from lmms_eval_mai.serve.service import Service

MAX_FILES, MAX_WAITING = 65_536, 4096
"""Files and connections that the process may have open, and connections that wait for their clients."""
KEEP_ALIVE_S = 60
"""Seconds for which an idle connection stays open. OpenAI's client drops one after 5 s, and so does uvicorn by default:
if both do it at the same time, the client's next request fails."""
WATCH_S = 0.5
"""Seconds between two looks at all connections and engines."""


def bind(host: str, port: int) -> socket.socket:
    """Return a socket for this address. It is bound before the engines start, so that a port in use is found at once.
    Clients that connect before the engines are ready wait. Raises `ArgumentError`."""
    try:
        bound = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        text = f"The server cannot use {host}:{port} ({error}). Give another --host or --port."
        raise ArgumentError(text) from None
    # Connections inherit it. asyncio sets it only if a socket names its protocol, and this one does not: the body of a
    # reply then waits 40 ms until the client has confirmed the headers.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


def run(service: Service, bound: socket.socket) -> None:
    """Start the engines and answer requests until a signal, which is raised again at the end. Requests in flight are
    answered first. A second SIGINT stops at once. Raises `EngineStartError`, and `EngineCrashed` if an engine cannot be
    started again."""
    try:
        service.start()
        # The imports make hundreds of thousands of objects, which stay. The garbage collector must not visit them again
        # and again, because all requests wait then.
        gc.collect()
        gc.freeze()
        host, port = bound.getsockname()[:2]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        logger.info(
            f"mai_cascade: serving {service.settings.model_name} on {address}/v1: {service.config.max_open_samples} "
            f"requests at the same time, and up to {service.settings.max_queue} that wait. Ctrl-C or SIGTERM stops the "
            "server after the requests in flight are answered."
        )
        asyncio.run(Server(service).serve(sockets=[bound]))
    finally:
        service.stop()
    if service.crash is not None:
        raise service.crash


class Server(uvicorn.Server):
    """uvicorn's server, which closes the connections of clients that keep it waiting.

    uvicorn itself waits without a limit for the headers of a request and for a client that reads nothing. So 1,300
    silent connections would take all file descriptors of a process, which are 1,024 by default.
    """

    def __init__(self, service: Service) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
        if soft != resource.RLIM_INFINITY and soft < files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
        self._service, self._max_waiting = service, min(MAX_WAITING, files // 4)
        config = uvicorn.Config(
            App(service).asgi,
            http="h11",
            h11_max_incomplete_event_size=64 * 2**10,  # of headers: some proxies need more than h11's 16 KiB
            limit_concurrency=2 * self._max_waiting,
            timeout_keep_alive=KEEP_ALIVE_S,
            ws="none",
            log_config=None,
            log_level="critical",  # its errors would have the message of an exception, and so texts of prompts
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=int(service.settings.request_timeout) + 5,  # each request has its own limit
        )
        super().__init__(config)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer requests until a signal or a crash."""
        # Hostile bytes and a lack of descriptors would otherwise fill the log with tracebacks.
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logger.debug(context["message"]))
        watching = asyncio.create_task(self._watch())
        await super().serve(sockets)
        watching.cancel()

    async def _watch(self) -> None:
        """Close the connections that have waited too long for their clients, and the oldest of them if they are too
        many. Let engines that died start again, and stop the server if one cannot."""
        since: dict[Any, float] = {}
        while not self._service.crash:
            now, waiting = time.monotonic(), {}
            connections: set[Any] = set(self.server_state.connections)  # of the class for http="h11"
            for connection in connections:
                cycle = connection.cycle  # the last request whose headers are complete, or None
                if cycle is None or cycle.response_complete or connection.flow.write_paused:
                    waiting[connection, cycle] = since.get((connection, cycle), now)
            oldest_first = sorted(waiting.items(), key=lambda item: item[1])
            for number, ((connection, _), began) in enumerate(oldest_first):
                is_too_long = now - began > self._service.settings.client_timeout
                if is_too_long or number < len(waiting) - self._max_waiting:
                    connection.transport.abort()
            since = waiting
            await asyncio.sleep(WATCH_S)
            self._service.watch_engines()
        self.should_exit = True
