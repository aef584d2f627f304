"""The HTTP routes of the server, and the path of a chat request: key, body, question, answer, reply."""

import asyncio
import hmac
import json
import time
import traceback
from typing import Any

from loguru import logger
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.paper.sample import Trace
from lmms_eval_mai.run.fingerprint import version
from lmms_eval_mai.serve.errors import RequestError, json_response, to_request_error
from lmms_eval_mai.serve.limits import ClientGone, until_disconnected
from lmms_eval_mai.serve.metrics import CallEvent, Observer
from lmms_eval_mai.serve.question import Question
from lmms_eval_mai.serve.reply import Reply, data_part
from lmms_eval_mai.serve.schema import ChatRequest
from lmms_eval_mai.serve.service import Service


def make_app(service: Service) -> Starlette:
    """Return the application of a service whose engines run."""
    routes = Routes(service)
    return Starlette(
        routes=[
            Route("/health", routes.health),
            Route("/metrics", routes.metrics),
            Route("/openapi.json", routes.description),
            Route("/v1/models", routes.models),
            Route("/v1/models/{name:path}", routes.one_model),
            Route("/v1/chat/completions", routes.chat_completions, methods=["POST"]),
        ],
        exception_handlers=dict.fromkeys((RequestError, MaiError, HTTPException, Exception), routes.error),
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(service.settings.allowed_hosts))],
    )


class Routes:
    """The functions behind the paths."""

    def __init__(self, service: Service) -> None:
        self._service, settings = service, service.settings
        self._key = None if settings.api_key is None else f"Bearer {settings.api_key}".encode()
        created = int(time.time())
        self._model = {"id": settings.model_name, "object": "model", "created": created, "owned_by": "lmms-eval-mai"}
        self._description = json.dumps(describe(settings.model_name)).encode()

    async def health(self, request: Request) -> Response:
        """Tell whether both engines answer calls, and how many requests the server has now."""
        down = [side for side, is_up in self._service.up().items() if not is_up]
        found = {"status": "engine_down" if down else "ok", "down": down, "requests": self._service.admission.count}
        return json_response(found, 503 if down else 200)

    async def metrics(self, request: Request) -> Response:
        """Count requests, exits, calls, tokens, seconds and errors, for Prometheus."""
        return Response(self._service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def description(self, request: Request) -> Response:
        """Return the OpenAPI description."""
        return Response(self._description, media_type="application/json")

    async def models(self, request: Request) -> Response:
        """List the pair that is served."""
        self._check_key(request)
        return json_response({"object": "list", "data": [self._model]})

    async def one_model(self, request: Request) -> Response:
        """Describe the pair that is served."""
        self._check_key(request)
        name = request.path_params["name"]
        if name != self._model["id"]:
            raise RequestError(404, f"The model {name[:100]!r} is not served here.", "model_not_found", "model")
        return json_response(self._model)

    async def chat_completions(self, request: Request) -> Response:
        """Answer the question of a chat."""
        self._check_key(request)
        return ChatResponse(self._service)

    async def error(self, request: Request, error: Exception) -> Response:
        """Return the reply for an error."""
        if isinstance(error, RequestError | MaiError):
            found = to_request_error(error)
        elif isinstance(error, HTTPException):  # a path or a method that does not exist
            text = f"{request.method} {request.url.path[:100]} is not supported ({error.detail})."
            found = RequestError(error.status_code, text, "not_found", headers=error.headers or {})
        else:
            # Log where the error is, without its message: the message may contain the text of a prompt.
            where = "".join(traceback.format_tb(error.__traceback__))
            logger.error(f"mai_cascade: unexpected {type(error).__name__} in a request:\n{where}")
            text = "An unexpected error happened in lmms-eval-mai. The log of the server shows where."
            found = RequestError(500, text, "internal_error")
        self._service.metrics.replied(found.status)
        return json_response(found.body(), found.status, found.headers)

    def _check_key(self, request: Request) -> None:
        given = request.headers.get("authorization", "").encode("latin-1")  # as the client sent it
        if self._key is not None and not hmac.compare_digest(given, self._key):
            text = "The API key is missing or wrong. Send the header Authorization: Bearer KEY."
            raise RequestError(401, text, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


class ChatResponse(Response):
    """The reply to a chat request, which is read and answered while the reply is sent. So the request counts as
    admitted until the end of a streamed reply."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request. Raises `RequestError` or a `MaiError` if no part of the reply was sent yet."""
        service, settings, began = self._service, self._service.settings, time.monotonic()
        try:
            body = await service.admission.body(Request(scope, receive))
            with service.admission.admitted():
                question = await service.read(body)
                del body
                # The body has a time limit of its own: a slow one must not take the time of the reply.
                async with asyncio.timeout(settings.request_timeout + settings.sending_timeout):
                    send_reply = self._send_parts if question.streamed else self._send_at_once
                    await until_disconnected(receive, send_reply(question, began, send))
        except (ClientGone, TimeoutError):  # TimeoutError: the client does not take its reply
            service.metrics.replied(ClientGone.STATUS)

    async def _send_at_once(self, question: Question, began: float, send: Send) -> None:
        trace = await self._service.answer(question)
        self._answered(question, began, trace)
        reply = Reply(question, self._service.settings.model_name)
        body = json.dumps(reply.whole(trace)).encode()
        await self._start(send, reply, b"application/json", (b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})  # waits until the client has taken the body
        self._service.metrics.replied(200)

    async def _send_parts(self, question: Question, began: float, send: Send) -> None:
        events: asyncio.Queue[CallEvent | None] = asyncio.Queue()  # None: the question is answered or has failed
        loop = asyncio.get_running_loop()
        observe: Observer = lambda event: loop.call_soon_threadsafe(events.put_nowait, event)  # noqa: E731
        trace = asyncio.ensure_future(self._service.answer(question, observe))
        trace.add_done_callback(lambda _: events.put_nowait(None))
        try:
            first = await events.get()
            if first is None:
                await trace  # raises the error that prevented the first call
            reply = Reply(question, self._service.settings.model_name)
            await self._start(send, reply, b"text/event-stream; charset=utf-8", (b"cache-control", b"no-cache"))
            status, end = 200, b"data: [DONE]\n\n"
            try:
                async for part in reply.parts(first, events, trace):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                self._answered(question, began, trace.result())
            except (MaiError, RequestError) as error:  # it is a part too, because the status is sent already
                found = to_request_error(error)
                status, end = found.status, data_part(found.body())
            await send({"type": "http.response.body", "body": end})
            self._service.metrics.replied(status)
        finally:
            trace.cancel()
            await asyncio.gather(trace, return_exceptions=True)

    async def _start(self, send: Send, reply: Reply, kind: bytes, *headers: tuple[bytes, bytes]) -> None:
        own = [(b"content-type", kind), (b"x-request-id", reply.id.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": [*own, *headers]})

    def _answered(self, question: Question, began: float, trace: Trace) -> None:
        self._service.metrics.answered(question.mode, trace, time.monotonic() - began)


def describe(model_name: str) -> dict[str, Any]:
    """Return the OpenAPI description of a server."""
    body = ChatRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    parts = body.pop("$defs")
    body["properties"] |= {"model": {"enum": [model_name]}}
    error = {"description": "An error", "content": {"application/json": {"schema": {"required": ["error"]}}}}
    errors = {"4XX": error, "5XX": error}
    answer = {
        "description": "The answer, in parts if the request has `stream: true`",
        "content": {"application/json": {}, "text/event-stream": {}},
    }
    chat = {
        "summary": "Answer the question of a chat",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": answer, **errors},
    }
    models = {"description": "The pair that is served", "content": {"application/json": {}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "lmms-eval-mai", "version": version("lmms-eval-mai")},
        "paths": {
            "/v1/models": {"get": {"summary": "List the pair that is served", "responses": {"200": models, **errors}}},
            "/v1/chat/completions": {"post": chat},
        },
        "components": {"schemas": parts},
    }
