"""The HTTP client of one endpoint. It sends JSON and returns the JSON of the reply.

It uses aiohttp, because one process must send requests to many replicas: a call of the `openai` package takes about
ten times as much CPU time. It makes no retries.
"""

import email.utils
import io
import json
import math
import socket
import time
from typing import Any

import aiohttp
from loguru import logger

CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 4.0
"""Seconds after which an unused connection is closed. Less than the 5 s after which uvicorn (vLLM) closes it, because
a request must not be sent on a connection that the server is closing."""
KEEPALIVE_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Options of sockets on Linux. If the other machine is lost, the connection breaks after about a minute, and the
request is sent to another endpoint. Otherwise it would wait for `request_timeout`, and would not be retried."""
PLACEHOLDER_KEY = "none"
"""Sent if no key is set: some servers require a key, and private servers ignore it."""
LOGPROBS_REFUSED = (400, 422)
"""Statuses with which servers refuse `logprobs`: OpenAI's and Gemini's APIs for some models, and vLLM with
`--max-logprobs 0`."""


class RequestError(Exception):
    """Raised when a request got no answer. Its text is one line of any length, without the key."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()).rstrip("."))


class ConnectionFailed(RequestError):
    """Raised when no connection could be made, or the connection broke before the reply was complete."""


class ClientClosed(RequestError):
    """Raised when the client was closed before the request was sent."""


class RequestTimeout(RequestError):
    """Raised when a server that was reached did not answer in time. A retry would take as long."""


class StatusError(RequestError):
    """Raised when the reply has an error status."""

    def __init__(self, status: int, reply: Any, retry_after: str, key: str) -> None:
        """`reply`: JSON or text. `retry_after`: the header. `key`: not shown; some servers repeat the key that they
        refuse."""
        error = (reply.get("error") or reply) if isinstance(reply, dict) else reply
        self.status = status
        self.retry_after_s = _seconds(retry_after)
        """Seconds that the server asks to wait, 0 if it does not ask."""
        self.code = str(error.get("code") or "") if isinstance(error, dict) else ""
        """Error code of OpenAI's API, such as `context_length_exceeded`."""
        text = (error.get("message") or error.get("detail") or error) if isinstance(error, dict) else error
        text = f"status {status}: {text}" if text else f"status {status}"
        super().__init__(text.replace(key, "<key>") if key else text)


class Client:
    """Requests to one endpoint. Must be made in the event loop that uses it."""

    def __init__(self, url: str, key: str, timeout_s: float, proxy: str | None = None) -> None:
        """`url`: the address with `/v1`. `key`: "" if there is none. `proxy`: the address of an HTTP proxy."""
        self.url = url
        self._key = key
        self._gives_logprobs: bool | None = None
        """Whether the endpoint accepts `logprobs`. None: not known yet."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, socket_factory=socket_of),
            cookie_jar=aiohttp.DummyCookieJar(),  # a cookie of a load balancer would send all samples to one replica
            headers={"Authorization": f"Bearer {key or PLACEHOLDER_KEY}"},
            timeout=_timeout(timeout_s),
            proxy=proxy,
        )

    async def list_models(self, timeout_s: float) -> dict[str, int | None]:
        """Return name and context (tokens, if reported) of each served model. Raises `RequestError`."""
        try:
            reply = await self._request("GET", f"{self.url}/models", timeout=_timeout(timeout_s))
        except RequestTimeout as error:  # it is retried: the server or its proxy may not be ready
            raise ConnectionFailed(f"no answer within {timeout_s:g} s") from error
        return served_models(reply)

    async def chat(self, body: dict[str, Any]) -> Any:
        """Return the reply to a chat request, with log-probabilities if the endpoint gives them. Raises `RequestError`.

        A request that is refused before any was answered is sent once more without `logprobs`. If the endpoint answers
        that one, it is never asked for log-probabilities again.
        """
        url = f"{self.url}/chat/completions"
        if self._gives_logprobs is False:
            return await self._post(url, body)
        try:
            reply = await self._post(url, body | {"logprobs": True})
        except StatusError as error:
            if self._gives_logprobs or error.status not in LOGPROBS_REFUSED:
                raise
            reply = await self._post(url, body)
            if self._gives_logprobs is None:  # no other request was answered meanwhile
                self._gives_logprobs = False
                logger.info(f"mai_cascade: {self.url} gives no log-probabilities ({error}).")
            return reply
        self._gives_logprobs = True
        return reply

    async def post_beside(self, path: str, body: dict[str, Any]) -> Any:
        """Return the reply of a `POST` to a path beside `/v1`. Raises `RequestError`."""
        return await self._post(f"{self.url.removesuffix('/v1')}/{path}", body)

    async def close(self) -> None:
        await self._session.close()

    async def _post(self, url: str, body: dict[str, Any]) -> Any:
        # As a file, a large body is sent in parts, so that other requests do not wait for it.
        data = io.BytesIO(json.dumps(body).encode())
        headers = {"Content-Type": "application/json"}
        return await self._request("POST", url, data=data, headers=headers)

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
            raise StatusError(response.status, reply, response.headers.get("Retry-After", ""), self._key)
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


def _seconds(retry_after: str) -> float:
    """Return the header `Retry-After`, which is in seconds or a date (RFC 9110, 10.2.3), in seconds. 0: it is neither
    or in the past."""
    try:
        seconds = float(retry_after)
    except ValueError:
        date = email.utils.parsedate_tz(retry_after)
        seconds = 0.0 if date is None else email.utils.mktime_tz(date) - time.time()
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def served_models(reply: Any) -> dict[str, int | None]:
    """Return name and context (tokens, if reported) of each model in a list of models."""
    models = reply.get("data") if isinstance(reply, dict) else None
    entries = [model for model in models if isinstance(model, dict)] if isinstance(models, list) else []
    return {str(model["id"]): model.get("max_model_len") for model in entries if "id" in model}
