"""The HTTP client of one endpoint. It sends JSON and returns the JSON of the reply.

It uses aiohttp, because one process must send requests to many replicas: a call of the `openai` package takes about
ten times as much CPU time. It makes no retries.
"""

import io
import json
import socket
from typing import Any

import aiohttp
from loguru import logger

from lmms_eval_mai.engines.messages import is_too_long
from lmms_eval_mai.redaction import error_text, one_line

CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 4.0
"""Seconds after which an unused connection is closed. Less than the 5 s after which uvicorn (vLLM) closes it, because
a request must not be sent on a connection that the server is closing."""
KEEPALIVE_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Options of sockets on Linux. If the other machine is lost, the connection breaks after about a minute, and the
request is sent to another endpoint. Otherwise it would wait for `request_timeout`, and would not be retried."""
LOGPROBS_REFUSED = (400, 422)
"""Statuses with which servers refuse `logprobs`: OpenAI's and Gemini's APIs for some models, and vLLM with
`--max-logprobs 0`."""


class RequestError(Exception):
    """Raised when a request got no answer. Its text is one line without the key."""

    status = 0
    """Status of the reply. 0: there is none."""
    retry_after_s = 0.0
    """Seconds that the server asks to wait, 0 if it does not ask."""
    is_transient = False
    """Whether a retry may help."""


class ConnectionFailed(RequestError):
    """Raised when no connection could be made, or the connection broke before the reply was complete."""

    is_transient = True
    others_answered = False
    """Whether other requests were answered while this one was retried."""


class RequestTimeout(RequestError):
    """Raised when a server that was reached did not answer in time. A retry would take as long."""


class StatusError(RequestError):
    """Raised when the reply has an error status."""

    def __init__(self, status: int, reply: Any, retry_after: str, key: str) -> None:
        """`reply`: JSON or text. `retry_after`: the header. `key`: not shown; some servers repeat the key that they
        refuse."""
        self.status = status
        self.retry_after_s = float(retry_after) if retry_after.replace(".", "", 1).isdecimal() else 0.0
        self.is_transient = status in (408, 409, 425, 429) or status >= 500
        error = (reply.get("error") or reply) if isinstance(reply, dict) else reply
        code = str(error.get("code") or "") if isinstance(error, dict) else ""
        text = (error.get("message") or error.get("detail") or error) if isinstance(error, dict) else error
        self.is_too_long = is_too_long(str(text)) or "context_length" in code
        """Whether the server says that the prompt does not fit its context."""
        text = f"status {status}: {text}" if text else f"status {status}"
        super().__init__(one_line(text.replace(key, "<key>") if key else text).rstrip("."))


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
            headers={"Authorization": f"Bearer {key or 'none'}"},  # some servers require a key, and others ignore it
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
        url, asks = f"{self.url}/chat/completions", self._gives_logprobs is not False
        try:
            reply = await self._post(url, body | {"logprobs": True} if asks else body)
        except StatusError as error:
            refused = error.status in LOGPROBS_REFUSED or (error.status == 403 and "logprob" in str(error).lower())
            if not asks or self._gives_logprobs or not refused:
                raise
            reply, asks = await self._post(url, body), False
            logger.debug(f"mai_cascade: {self.url} gives no log-probabilities ({error}).")
        self._gives_logprobs = asks
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
            raise RequestError("the engine was closed")
        try:
            async with self._session.request(method, url, **arguments) as response:
                body = await response.read()
        except aiohttp.ConnectionTimeoutError as error:
            raise ConnectionFailed("Connection error: the connection timed out") from error
        except TimeoutError as error:
            raise RequestTimeout("Request timed out") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionFailed(f"Connection error: {error_text(error)}") from error
        try:
            reply = json.loads(body)
        except ValueError:
            reply = body.decode(errors="replace")
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


def served_models(reply: Any) -> dict[str, int | None]:
    """Return name and context (tokens, if reported) of each model in a list of models."""
    try:
        return {model["id"]: model.get("max_model_len") for model in reply["data"]}
    except (KeyError, TypeError):
        return {}
