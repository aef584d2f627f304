"""Starts the server and stops it: after SIGTERM or SIGINT, or when an engine cannot be started again."""

import asyncio
import gc
import socket

import uvicorn
from loguru import logger

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.serve.app import App
from lmms_eval_mai.serve.service import Service

IDLE_CONNECTIONS = 512
"""Connections that may be open besides those of the requests that are answered or wait: for health, metrics and clients
that keep a connection. With more, each new request gets the status 503."""
KEEP_ALIVE_S = 60
"""Seconds for which an idle connection stays open. OpenAI's client drops one after 5 s, and so does uvicorn by default:
if both do it at the same time, the client's next request fails."""
WATCH_S = 0.5
"""Seconds between two looks at the engines."""


def bind(host: str, port: int) -> socket.socket:
    """Return a socket for this address. A port in use is found so before the engines start, and clients wait until
    they are ready. Raises `ArgumentError`."""
    try:
        bound = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        text = f"The server cannot use {host}:{port} ({error}). Give another --host or --port."
        raise ArgumentError(text) from None
    # Connections inherit it. asyncio sets it only if a socket names its protocol, and this one does not: the body of a
    # reply then waits 40 ms until the client has confirmed the headers.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


def serve_until_stopped(service: Service, bound: socket.socket) -> None:
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
            f"requests at the same time, and up to {service.settings.max_queue} that wait. Ctrl-C or SIGTERM stops it."
        )
        asyncio.run(serve(service, server_of(service), bound))
    finally:
        service.stop()
    if service.crash is not None:
        raise service.crash


def server_of(service: Service) -> uvicorn.Server:
    """Return uvicorn's server for a service, within uvicorn's own limits. Clients that send no headers or read nothing
    keep their connections: this is for a proxy."""
    settings = service.settings
    config = uvicorn.Config(
        App(service).asgi,
        http="h11",
        h11_max_incomplete_event_size=64 * 2**10,  # of headers: some proxies need more than h11's 16 KiB
        limit_concurrency=service.config.max_open_samples + settings.max_queue + IDLE_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        ws="none",
        log_config=None,
        log_level="critical",  # its errors would have the message of an exception, and so texts of prompts
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=int(settings.request_timeout) + 5,  # each request has its own limit
    )
    return uvicorn.Server(config)


async def serve(service: Service, server: uvicorn.Server, bound: socket.socket) -> None:
    # Hostile bytes and a lack of file descriptors would otherwise fill the log with tracebacks.
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logger.debug(context["message"]))
    watching = asyncio.create_task(_watch_engines(service, server))
    await server.serve(sockets=[bound])
    watching.cancel()


async def _watch_engines(service: Service, server: uvicorn.Server) -> None:
    """Let engines that died start again, and stop the server if one cannot."""
    while not service.crash:
        await asyncio.sleep(WATCH_S)
        service.watch_engines()
    server.should_exit = True
