"""The HTTP client of one endpoint. It sends JSON and returns the JSON of the reply.

It uses aiohttp, because one process must send requests to many replicas: a call of the `openai` package takes about
ten times as much CPU time. It makes no retries.
"""

import io
import json
import os
import socket
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from lmms_eval_mai.errors import EngineStartError

CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 4.0
"""Seconds after which an unused connection is closed. Less than the 5 s after which uvicorn (vLLM) closes it, because
a request must not be sent on a connection that the server is closing."""
KEEPALIVE_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Options of sockets on Linux. If the other machine is lost, the connection breaks after about a minute, and the
request is sent to another endpoint. Otherwise it would wait for `request_timeout`, and would not be retried."""
LARGE_BODY = 1 << 20
"""Bytes. A larger body is sent in parts, so that other requests do not wait for it."""
ACCOUNT_HEADERS = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
"""Headers of OpenAI's API, and the environment variables that set them, as in the `openai` package."""


class RequestError(Exception):
    """Raised when a request got no answer."""


class ConnectionFailed(RequestError):
    """Raised when no connection could be made, or the connection broke before the reply was complete."""


class ClientClosed(RequestError):
    """Raised when the client was closed before the request was sent."""


class RequestTimeout(RequestError):
    """Raised when a server that was reached did not answer in time. A retry would take as long."""


class StatusError(RequestError):
    """Raised when the reply has an error status."""

    def __init__(self, status: int, reply: Any, retry_after: str = "") -> None:
        """`reply`: JSON or text. `retry_after`: the header."""
        error = (reply.get("error") or reply) if isinstance(reply, dict) else reply
        self.status = status
        self.retry_after = retry_after
        self.code = str(error.get("code") or "") if isinstance(error, dict) else ""
        """Error code of OpenAI's API, such as `context_length_exceeded`."""
        text = (error.get("message") or error.get("detail") or error) if isinstance(error, dict) else error
        super().__init__(f"status {status}: {text}" if text else f"status {status}")


class Client:
    """Requests to one endpoint. Must be made in the event loop that uses it."""

    def __init__(self, url: str, key: str, timeout_s: float) -> None:
        """`url`: the address with `/v1`. Raises `EngineStartError`."""
        self.url = url
        account = {header: os.environ[name] for header, name in ACCOUNT_HEADERS.items() if os.environ.get(name)}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, socket_factory=socket_of),
            cookie_jar=aiohttp.DummyCookieJar(),  # a cookie of a load balancer would send all samples to one replica
            headers={"Authorization": f"Bearer {key}", **account},
            timeout=_timeout(timeout_s),
            proxy=proxy_of(url),
        )

    async def get(self, path: str, timeout_s: float) -> Any:
        """Return the reply of `GET <url>/<path>`. Raises `RequestError`."""
        return await self._request("GET", f"{self.url}/{path}", timeout=_timeout(timeout_s))

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the reply of `POST <url>/<path>`. Raises `RequestError`."""
        return await self._post(f"{self.url}/{path}", body)

    async def post_beside(self, path: str, body: dict[str, Any]) -> Any:
        """Return the reply of a `POST` to a path beside `/v1`. Raises `RequestError`."""
        return await self._post(f"{self.url.removesuffix('/v1')}/{path}", body)

    async def close(self) -> None:
        await self._session.close()

    async def _post(self, url: str, body: dict[str, Any]) -> Any:
        data = json.dumps(body).encode()
        return await self._request(
            "POST",
            url,
            data=data if len(data) < LARGE_BODY else io.BytesIO(data),
            headers={"Content-Type": "application/json"},
        )

    async def _request(self, method: str, url: str, **arguments: Any) -> Any:
        """Return the JSON of the reply, or its text if it is not JSON."""
        if self._session.closed:
            raise ClientClosed("the engine was closed")
        try:
            async with self._session.request(method, url, **arguments) as response:
                reply = _json_or_text(await response.read())
        except aiohttp.ConnectionTimeoutError as error:
            raise ConnectionFailed("Connection error: the connection timed out") from error
        except TimeoutError as error:
            raise RequestTimeout("Request timed out") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionFailed(f"Connection error: {_cause(error)}") from error
        if response.status >= 400:
            raise StatusError(response.status, reply, response.headers.get("Retry-After", ""))
        return reply


def socket_of(address: Any) -> socket.socket:
    """Return a socket for an entry of `socket.getaddrinfo`, with probes (`KEEPALIVE_PROBES`)."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE_PROBES.items():
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def proxy_of(url: str) -> str | None:
    """Return the proxy that `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` set for this address. Raises
    `EngineStartError`."""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.netloc):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
    if proxy and "://" not in proxy:
        proxy = f"http://{proxy}"
    if proxy and urlsplit(proxy).scheme not in ("http", "https"):
        raise EngineStartError(
            f"The environment sets a proxy for {url} that is not an HTTP proxy. Set HTTP_PROXY or HTTPS_PROXY to an "
            f"HTTP proxy, or add {parts.hostname} to NO_PROXY."
        )
    return proxy or None


def _timeout(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, connect=CONNECT_TIMEOUT_S)


def _cause(error: Exception) -> str:
    os_error = getattr(error, "os_error", error)
    return getattr(os_error, "strerror", None) or str(error) or type(error).__name__


def _json_or_text(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace").strip()
