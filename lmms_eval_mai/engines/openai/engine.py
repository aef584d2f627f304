"""A model behind OpenAI-compatible endpoints: vLLM's server, SGLang, a router, Ray Serve, or a commercial API.

All calls with the same first image use the same endpoint, because its caches hold the image. If that endpoint does not
answer, the next one is used. An endpoint that restarts within `retry_for` seconds loses no call.
aiohttp sends a request in 0.43 ms of CPU time, the `openai` package in 4.34 ms.
"""

import asyncio
import dataclasses
import errno
import io
import json
import math
import os
import random
import re
import socket
import time
import urllib.request
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Annotated, Any
from urllib.parse import urlsplit

import aiohttp
from loguru import logger
from pydantic import BeforeValidator

from lmms_eval_mai.contract import Engine, EngineConfig, Prompt, Repetition, Reply, Sampling
from lmms_eval_mai.engines.arguments import NO_EFFECT, Arguments, Count, Number, read
from lmms_eval_mai.engines.messages import is_too_long, replica_of
from lmms_eval_mai.engines.openai.chat import chat_messages, error_status, sampling_arguments, to_reply
from lmms_eval_mai.engines.thinking import SWITCH, ThinkingSwitch
from lmms_eval_mai.errors import (
    ArgumentError,
    CallTimeout,
    EndpointBusy,
    EndpointRefused,
    EngineCrashed,
    EngineNotRunning,
    EngineStartError,
    MaiError,
    PromptTooLong,
    SampleError,
)
from lmms_eval_mai.redaction import error_text, one_line, without_password

BUDGET = "thinking_token_budget"
REFUSED = ("logprobs", BUDGET)
"""Fields of a request that are left out if the server refuses them. OpenAI and Gemini refuse log-probabilities for some
models, and vLLM with `--max-logprobs 0`. vLLM refuses the budget without a reasoning parser."""
ADDRESS = re.compile(r"https?://([\w.-]+|\[[\da-f:.]+\])(:\d{1,5})?(/[^@?#\s]*)?", re.IGNORECASE)
LOOPBACK = re.compile(r"localhost\.?|127\.[\d.]+|0\.0\.0\.0|::1")


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int) else value  # lmms-eval reads the name 2026 as a number


class OpenAIOptions(Arguments):
    """Arguments of the engine, `small_<name>` / `large_<name>` / `<name>` for both."""

    model: Annotated[str | None, BeforeValidator(_text)] = None
    """Name under which the endpoint serves the model. Needed only if the endpoint serves several models."""
    api_key_env: Annotated[str, BeforeValidator(_text), NO_EFFECT] = "OPENAI_API_KEY"
    """Environment variable with the key. The key itself is never an argument, because lmms-eval prints arguments."""
    retry_for: Annotated[Number, NO_EFFECT] = 120.0
    """A failed request is retried until this many seconds after its first failure. When the run starts, also the
    seconds to wait until an endpoint answers."""
    request_timeout: Annotated[Number, NO_EFFECT] = 600.0
    """Seconds that one request may take. A request that takes longer is not retried. 0: no limit."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    """Arguments of the model's chat template, such as {"reasoning_effort": "low"}. A server that reports
    its context (vLLM, SGLang) always gets `enable_thinking`. Another one gets it in native calls, and in all calls if
    this argument is given: give {} if its model thinks by itself."""
    concurrency: Annotated[Count, NO_EFFECT] = 256
    """Largest number of open requests per endpoint."""


def addresses(side: str, given: str) -> list[str]:
    """Read `http://a:8000/v1`, or several as `[http://a:8000/v1,http://b:8000/v1]`. Raises `ArgumentError`."""
    given = given.strip()
    urls = given[1:].removesuffix("]").split(",") if given.startswith("[") else [given]
    urls = [url.strip(" \"'").rstrip("/") for url in urls]
    for url in urls:
        if not ADDRESS.fullmatch(url):
            shown = url.partition("?")[0].rpartition("@")[2]  # without a password and a key
            raise ArgumentError(f"{side}={shown} is not the address of an endpoint: expected http://HOST:PORT/v1.")
    return urls


def proxy_of(url: str) -> tuple[str, str | None]:
    """Return the variable that sets a proxy for this address (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, or in small
    letters), and the proxy. None: there is none, or the address is of this machine or in `NO_PROXY`.

    aiohttp's own `trust_env` is not used: it reads `~/.netrc` in a thread for each request, and refuses to send a key
    to a host with an entry there.
    """
    parts = urlsplit(url)
    if LOOPBACK.fullmatch(parts.hostname or "") or urllib.request.proxy_bypass(parts.netloc):
        return "", None
    names = (name for scheme in (parts.scheme, "all") for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper()))
    name = next((name for name in names if name in os.environ), "")  # an empty one switches proxies off
    proxy = os.environ.get(name) or None
    return name, f"http://{proxy}" if proxy and "://" not in proxy else proxy


class Endpoint:
    """An address with its connections. Must be made in the event loop that uses it."""

    def __init__(self, url: str, key: str, options: OpenAIOptions) -> None:
        variable, proxy = proxy_of(url)
        self.url, self.name, self.check = url, url, "Check its server."
        if proxy:
            self.name = f"{url} through {variable}={without_password(proxy)}"
            self.check = "Check the proxy and the server, or list the server's host in NO_PROXY."
        self.slots = asyncio.Semaphore(options.concurrency)
        self.refused: set[str] = set()  # fields of a request
        self.has_warned = False  # of an error since the last answer
        self.waiting = set[str]()  # calls whose connection failed, until a connection is made again
        tracing = aiohttp.TraceConfig()
        tracing.on_request_headers_sent.append(self._on_connected)
        self.session = aiohttp.ClientSession(
            # uvicorn (vLLM) closes an unused connection after 5 s.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4, socket_factory=probing_socket),
            cookie_jar=aiohttp.DummyCookieJar(),  # a cookie of a load balancer would send all samples to one replica
            headers={"Authorization": f"Bearer {key or 'none'}", "Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=options.request_timeout, connect=5),
            proxy=proxy,
            trace_configs=[tracing],
        )

    async def _on_connected(self, *_: Any) -> None:
        self.waiting.clear()

    def accepted(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a request without the fields that the server refuses. Without its budget, a thinking is limited with
        the whole output."""
        if BUDGET in self.refused & body.keys():
            body = {**body, "max_tokens": min(body["max_tokens"], body[BUDGET])}
        return {name: value for name, value in body.items() if name not in self.refused}


def probing_socket(address: Any) -> socket.socket:
    """Return a socket whose connection breaks about a minute after the other machine is lost, so that the request is
    sent to another endpoint."""
    family, socket_type, protocol, _, _ = address
    made = socket.socket(family, socket_type, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def retry_after_s(header: str) -> float:
    """Return the seconds to wait that a `Retry-After` asks for, as a number or as a date; 0 if it has neither."""
    if header.replace(".", "", 1).isdecimal():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0


class OpenAIEngine(Engine):
    """One model on other machines. `total_s` is the time of the answered request; endpoints report no other times."""

    def __init__(self, config: EngineConfig, other: EngineConfig | None = None) -> None:
        """Raises `ArgumentError`."""
        self.side = config.side
        self._options = read(OpenAIOptions, config.arguments, f"{config.side}_")
        self._thinking = ThinkingSwitch(config, None)
        self._stops_repeats = config.stop_repeats
        self._sends_switch = config.native or self._options.chat_template_kwargs is not None
        self._urls = addresses(config.side, config.model)
        self._key = os.environ.get(self._options.api_key_env, "").strip()  # a mounted secret may end with a line break
        self.description = f"up to {self._options.concurrency} calls at once on each of {len(self._urls)} endpoints"
        self._endpoints: list[Endpoint] = []
        self._model = ""  # the served name; empty: the engine is not running
        self._context: int | None = None  # tokens; None: the endpoint does not report it

    @property
    def is_alive(self) -> bool:
        return not self._endpoints or not all(endpoint.waiting for endpoint in self._endpoints)

    def identity(self) -> str:
        """Return the identity of the served model. The address is not part of it: servers may move."""
        assert self._model, "the served model is known after the start"
        switch = [SWITCH, dict(self._thinking.given)] if self._sends_switch else []
        return json.dumps(["openai", self._model, self._context, *switch], sort_keys=True)

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        raise PromptTooLong(
            f"{prompt.key}: the thinking does not fit the context of {self._model}, and a server cannot truncate it. "
            "Serve the model with a longer context (vLLM: --max-model-len), or give a lower max_new_tokens."
        )

    async def start(self) -> None:
        """Wait until every endpoint answers, and read which model it serves."""
        self._endpoints = [Endpoint(url, self._key, self._options) for url in self._urls]
        served = [await self._served_model(endpoint) for endpoint in self._endpoints]
        if len(set(served)) > 1:
            raise EngineStartError(f"The endpoints of {self.side} must serve one model with one context: {served}.")
        self._model, self._context = served[0]
        self._sends_switch |= self._context is not None  # vLLM and SGLang ignore it if the template does not know it
        for endpoint in self._endpoints if self._stops_repeats else ():
            await self._check_repetition(endpoint)

    async def close(self) -> None:
        endpoints, self._endpoints, self._model = self._endpoints, [], ""
        for endpoint in endpoints:
            await endpoint.session.close()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Reply:
        endpoints = self._endpoints
        if not self._model:
            raise EngineNotRunning(f"The {self.side} engine is not running.")
        body = {"model": self._model, **sampling_arguments(sampling, self._context)}
        body["messages"] = await chat_messages(prompt.messages)
        if prompt.logprobs:
            body["logprobs"] = True
        if self._sends_switch or prompt.native:
            body["chat_template_kwargs"] = self._thinking.arguments(prompt)
        home = replica_of(prompt, len(endpoints))
        what = str(prompt.key)
        try:
            reply, total_s = await self._send(endpoints[home:] + endpoints[:home], what, body)
        finally:
            for endpoint in endpoints:
                endpoint.waiting.discard(what)
        return to_reply(prompt, reply, total_s)

    async def _served_model(self, endpoint: Endpoint) -> tuple[str, int | None]:
        """Return name and context of the model that the endpoint serves. Raises `EngineStartError`."""
        try:
            reply, _ = await self._send([endpoint], f"{self.side} models", {})
            models = {model["id"]: model.get("max_model_len") for model in json.loads(reply)["data"]}
        except MaiError as error:
            raise EngineStartError(str(error)) from error
        except (ValueError, KeyError, TypeError):
            models = {}
        name = self._options.model or (next(iter(models)) if len(models) == 1 else "")
        if not name or (models and name not in models):
            served = ", ".join(sorted(models)) or "no model"
            raise EngineStartError(f"{endpoint.url} serves {served}. Set {self.side}_model to one of the served names.")
        return name, models.get(name)

    async def _check_repetition(self, endpoint: Endpoint) -> None:
        """Raise `EngineStartError` if the server does not know `repetition_detection`. Such a server either refuses the
        field, or ignores it, also with a value that cannot be read."""
        body = {"model": self._model, "messages": [{"role": "user", "content": "1"}], "max_tokens": 1}
        for value, is_valid in ((dataclasses.asdict(Repetition()), True), ({"min_count": "?"}, False)):
            refusal = ""
            try:
                await self._send([endpoint], f"{self.side} stop_repeats", {**body, "repetition_detection": value})
            except (EndpointBusy, CallTimeout, EndpointRefused, EngineCrashed) as error:
                raise EngineStartError(str(error)) from error
            except SampleError as error:
                refusal = f" ({error})"
            if is_valid == bool(refusal):
                raise EngineStartError(
                    "stop_repeats=true needs a server that knows repetition_detection, as vLLM's does. "
                    f"{endpoint.url} {'refuses' if refusal else 'ignores'} it{refusal}. Leave stop_repeats out, or "
                    "serve the model with vLLM."
                )

    async def _send(self, order: list[Endpoint], what: str, body: dict[str, Any]) -> tuple[str, float]:
        """Send a request to the first endpoint, and after a temporary error to the next one.

        When all endpoints have failed, wait and begin again; the pauses grow. Give up `retry_for` seconds after the
        first failure. Raises the last error.
        """
        retry_for, attempt, deadline = self._options.retry_for, 0, math.inf
        while True:
            endpoint = order[attempt % len(order)]
            async with endpoint.slots:
                if endpoint.session.closed:
                    raise EngineNotRunning(f"The {self.side} engine was closed.")
                try:
                    answer = await self._request(endpoint, what, body)
                    endpoint.has_warned = False
                    return answer
                except (EndpointBusy, EngineCrashed) as raised:
                    error = raised
            attempt += 1
            rounds, position = divmod(attempt, len(order))
            backoff_s = 0.5 * 2 ** min(rounds - 1, 5) * random.uniform(0.5, 1)  # at most 16 s
            pause_s = 0.0 if position else max(backoff_s, getattr(error, "retry_after_s", 0.0))
            deadline = min(deadline, time.monotonic() + retry_for)
            if time.monotonic() + pause_s > deadline:
                raise error
            if not endpoint.has_warned:
                endpoint.has_warned = True
                logger.warning(f"mai_cascade: {error} Retrying for {retry_for:g} s ({self.side}_retry_for).")
            await asyncio.sleep(pause_s)

    async def _request(self, endpoint: Endpoint, what: str, body: dict[str, Any]) -> tuple[str, float]:
        """Return the reply and the seconds of the request, without retries.

        `body`: of a chat; if it is empty, the models are listed. `what`: the request, for messages. Raises
        `EngineCrashed` if the connection fails, `EndpointRefused`, or a `SampleError`.
        """
        body = endpoint.accepted(body)
        method, path = ("POST", "chat/completions") if body else ("GET", "models")
        # As a file, a large body is sent in parts, so that other requests do not wait for it.
        encoded = json.dumps(body).encode() if body else b""
        data = io.BytesIO(encoded) if body else None
        began = time.perf_counter()
        try:
            async with endpoint.session.request(method, f"{endpoint.url}/{path}", data=data) as response:
                text = (await response.read()).decode(errors="replace")
        except aiohttp.ClientError as error:
            why = without_password(error_text(error))  # of the proxy
            problem = f"{endpoint.name} does not answer ({why}). {endpoint.check}"
            if getattr(error, "errno", None) == errno.EMFILE:
                limits = f"{self.side}_concurrency or max_open_samples"
                problem = f"This process has too many open files. Raise its limit (ulimit -n), or lower {limits}."
            else:
                endpoint.waiting.add(what)
            raise EngineCrashed(problem) from error
        except TimeoutError:
            limit = f"{self.side}_request_timeout={self._options.request_timeout:g} s"
            raise CallTimeout(f"{what}: no answer within {limit}. Raise it, or lower max_open_samples.") from None
        endpoint.waiting.clear()
        status = response.status if response.status >= 400 else error_status(text)
        if status < 400:
            return text, time.perf_counter() - began
        if status == 404 and not body:
            return "", 0.0  # some routers do not list their models
        if status < 500 and (refused := {name for name in REFUSED if name in body and name[:-1] in text.lower()}):
            endpoint.refused |= refused
            return await self._request(endpoint, what, body)
        seconds = retry_after_s(response.headers.get("Retry-After", ""))
        raise self._error(f"{what}: {endpoint.name} has status {status}", status, text, seconds, len(encoded))

    def _error(self, problem: str, status: int, text: str, retry_after: float, size: int) -> MaiError:
        """Return the error of a reply. `problem`: the beginning of its message. `text`: of the reply. `retry_after`:
        seconds, 0 if the reply does not say. `size`: bytes of the request."""
        shown = text.replace(self._key, "<key>") if self._key else text  # some servers repeat a key that they refuse
        problem += f" ({one_line(shown)})."
        key = f"the key in {self._options.api_key_env}"
        if status == 402 or (status == 429 and "insufficient_quota" in text):
            return EndpointRefused(f"{problem} The account of {key} has no credits left: add some.")
        if status in (408, 409, 425, 429) or status >= 500:
            return EndpointBusy(f"{problem} Check its log, or raise {self.side}_retry_for.", retry_after)
        if status in (401, 403, 404, 407):
            return EndpointRefused(f"{problem} Check the address, the model, and {key}.")
        if is_too_long(text):
            return PromptTooLong(f"{problem} Serve a longer context, or make its server shrink images.", self._context)
        if status == 413:
            mib = f"{size / 2**20:.1f} MiB"
            return SampleError(f"{problem} Let the server, or a proxy before it, take {mib}, or give smaller images.")
        if "chat_template_kwargs" in text and self._sends_switch:
            problem += (
                " If it does not know chat_template_kwargs, it cannot switch a model's thinking: leave think=native "
                f"and {self.side}_chat_template_kwargs out, or serve the model with vLLM or SGLang."
            )
        return SampleError(f"{problem} Check the document, and the server's log.")
