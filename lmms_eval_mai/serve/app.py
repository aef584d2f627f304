"""The HTTP routes of the server, and the path of a chat request: key, body, question, answer, reply."""

import asyncio
import hmac
import json
import os
import re
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, cast

import PIL.ImageFile
import PIL.PngImagePlugin
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Send

from lmms_eval_mai.contract import PROMPTS, Call
from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.method.sample import Trace, trace_record
from lmms_eval_mai.serve.chat_request import read_request
from lmms_eval_mai.serve.errors import RequestError, to_request_error, wrong_path
from lmms_eval_mai.serve.question import Question, question_of
from lmms_eval_mai.serve.service import Service

LOCAL_HOST = re.compile(r"(localhost\.?|127(\.\d{1,3}){3}|0\.0\.0\.0|\[::1?\])(:\d*)?", re.IGNORECASE)
"""A header `Host` that names this machine. A web page may let a name of its own point here, but browsers do not ask DNS
for `localhost` and addresses."""
CLIENT_GONE = 499
"""The status of a request whose client did not wait for the reply, in nginx and in the metrics."""


class App:
    """The functions behind the paths, and the requests that the server has now."""

    def __init__(self, service: Service) -> None:
        self._service, self._settings, self._metrics = service, service.settings, service.metrics
        # lmms-eval lets Pillow fill missing pixels with grey (lmms_eval/api/task.py), and the models would answer about
        # the grey. Of texts in a PNG, Pillow would decompress and keep 64 MiB.
        PIL.ImageFile.LOAD_TRUNCATED_IMAGES = False
        PIL.PngImagePlugin.MAX_TEXT_MEMORY = 2**20
        self._readers = ThreadPoolExecutor(min(8, os.cpu_count() or 1), "mai-read")
        self._started_at = int(time.time())
        self._count = 0
        """Requests that are answered or wait, or whose body arrives."""
        self.asgi = Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat_completions, methods=["POST"]),
                Route("/v1/models", self._models),
                Route(f"/v1/models/{self._settings.model_name}", self._models),
                Route("/health", self._health),
                Route("/metrics", self._show_metrics),
            ],
            exception_handlers=dict.fromkeys((RequestError, MaiError, HTTPException, Exception), self._reply_to_error),
        )

    async def _health(self, request: Request) -> Response:
        self._check_host(request)
        down = self._service.down()
        health = {"status": "engine_down" if down else "ok", "down": down, "requests": self._count}
        return JSONResponse(health, 503 if down else 200)

    async def _show_metrics(self, request: Request) -> Response:
        self._check_host(request)
        opened, down = min(self._count, self._service.config.max_open_samples), self._service.down()
        self._metrics.requests.labels("open").set(opened)
        self._metrics.requests.labels("queued").set(self._count - opened)
        for engine in self._service.config.engines():
            self._metrics.engine_up.labels(engine.side).set(engine.side not in down)
        return Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def _models(self, request: Request) -> Response:
        self._check_key(request)
        name, is_list = self._settings.model_name, request.url.path == "/v1/models"
        model = {"id": name, "object": "model", "created": self._started_at, "owned_by": "lmms-eval-mai"}
        return JSONResponse({"object": "list", "data": [model]} if is_list else model)

    async def _reply_to_error(self, request: Request, error: Exception) -> Response:
        reply = wrong_path(request, error) if isinstance(error, HTTPException) else to_request_error(error)
        self._metrics.replies.labels(reply.status).inc()
        return JSONResponse(reply.body(), reply.status, reply.headers)

    async def _chat_completions(self, request: Request) -> Response:
        self._check_key(request)
        if self._count >= self._service.config.max_open_samples + self._settings.max_queue:
            text = "The server is full (max_open_samples and --max_queue). Send the request again later."
            raise RequestError(429, text, "queue_full", headers={"Retry-After": "1"})
        self._count += 1
        try:
            body = await self._body(request)
            question = await asyncio.get_running_loop().run_in_executor(self._readers, self._question, body)
        finally:
            self._count -= 1
        media_type = "text/event-stream" if question.request.stream else "application/json"
        return LateResponse(self._parts(question), media_type=media_type)

    def _check_host(self, request: Request) -> None:
        if self._settings.local_hosts_only and not LOCAL_HOST.fullmatch(request.headers.get("host", "")):
            text = "The header Host is not a name of this machine: use 127.0.0.1, or start with --api_key_env."
            raise RequestError(400, text, "unknown_host")

    def _check_key(self, request: Request) -> None:
        self._check_host(request)
        header, key = request.headers.get("authorization", ""), self._settings.api_key
        if key is not None and not hmac.compare_digest(header.encode("latin-1"), f"Bearer {key}".encode()):
            text = "The API key is missing or wrong. Send the header Authorization: Bearer KEY."
            raise RequestError(401, text, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    async def _body(self, request: Request) -> bytearray:
        """Return the body of a request. Raises `RequestError` if it is not JSON, too large or too slow."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            # A web page may send other types to a server on the same machine, without asking it first.
            text = "The body must be JSON. Send it with the header Content-Type: application/json."
            raise RequestError(415, text, "unsupported_media_type")
        limit, timeout, body = self._settings.max_body_mib, self._settings.body_timeout, bytearray()
        try:
            async with asyncio.timeout(timeout):
                async for part in request.stream():
                    body += part
                    if len(body) > limit * 2**20:
                        text = f"The body has more than {limit:g} MiB (--max_body_mib). Send less."
                        raise RequestError(413, text, "request_too_large")
        except TimeoutError:
            text = f"The body of the request did not arrive within {timeout:g} s."
            raise RequestError(408, text, "slow_request", headers={"Connection": "close"}) from None
        except ClientDisconnect:
            raise RequestError(CLIENT_GONE, "The client has closed the connection.", "client_gone") from None
        return body

    def _question(self, body: bytearray) -> Question:
        service, settings = self._service, self._settings
        return question_of(read_request(body, settings), service.config, service.gen_kwargs, settings.methods)

    async def _parts(self, question: Question) -> AsyncGenerator[bytes]:
        """Yield the reply. An error before its first part is raised. A later one is a part too."""
        self._count += 1
        status, has_begun = CLIENT_GONE, False
        try:
            async with (
                aclosing(self._service.answer(question)) as results,
                aclosing(reply_of(question, results)) as parts,
            ):
                async for part in parts:
                    has_begun = True
                    yield part
            status = 200
        except Exception as error:
            if not has_begun:
                status = 0  # `_reply_to_error` counts it
                raise
            reply = to_request_error(error)
            status = reply.status
            yield data_part(reply.body())
        finally:
            self._count -= 1
            if status:
                self._metrics.replies.labels(status).inc()


class LateResponse(StreamingResponse):
    """A reply that begins with its first part, so that an error before this part has its own status. Starlette cancels
    it if the client disconnects."""

    async def stream_response(self, send: Send) -> None:
        is_first = True
        async with aclosing(cast("AsyncGenerator[bytes]", self.body_iterator)) as parts:
            async for part in parts:
                if is_first:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                is_first = False
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})  # waits until the client has taken the reply


async def reply_of(question: Question, results: AsyncIterable[Call | Trace]) -> AsyncGenerator[bytes]:
    """Yield the reply in the shape of OpenAI's API: as a whole, or as server-sent events. `results`: the finished
    calls, and the trace at the end. Raises the errors of `results`.

    The first part has a text: clients take its time for that of the first token, and an error before it has a status of
    its own.
    """
    request, role, thinking = question.request, {"role": "assistant"}, {}
    reply = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": request.model}

    def choice(field: str, message: Mapping[str, Any], reason: str | None = None, **fields: Any) -> dict[str, Any]:
        only = {"index": 0, field: message, "finish_reason": reason, "logprobs": None}
        return {**reply, "object": f"chat.completion{'.chunk' * (field == 'delta')}", "choices": [only], **fields}

    async for result in results:
        if isinstance(result, Call):
            text = result.thinking if result.key.prompt == "native" else result.text
            if text and PROMPTS[result.key.prompt].thinks:
                thinking = {"reasoning_content": text}
                if request.stream:
                    yield data_part(choice("delta", role | thinking))
                    role = {}
            continue
        content = {"content": result.text if question.sample.variant is not None else result.answer.text}
        reason = "stop" if result.answer.finish_reason == "stop" else "length"
        kind = question.sample.answer_form if question.sample.variant is not None else "free"
        mai = {"method": question.config.method.name, "kind": kind, "exit": result.exit}
        mai |= trace_record(result) if request.mai.trace else {}
        usage = _usage(result.calls)
        if request.stream:
            yield data_part(choice("delta", role | content))
            yield data_part(choice("delta", {}, reason, mai=mai))
            if request.stream_options.include_usage:
                yield data_part({**choice("delta", {}), "choices": [], "usage": usage})
            yield b"data: [DONE]\n\n"
        else:
            message = {"role": "assistant", **content, **thinking}
            yield json.dumps(choice("message", message, reason, mai=mai, usage=usage)).encode()


def data_part(value: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def _usage(calls: Sequence[Call]) -> dict[str, Any]:
    prompt, output = sum(call.prompt_tokens for call in calls), sum(call.output_tokens for call in calls)
    thinking = sum(call.output_tokens for call in calls if PROMPTS[call.key.prompt].thinks)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(call.cached_tokens for call in calls)},
        "completion_tokens_details": {"reasoning_tokens": thinking},
    }
