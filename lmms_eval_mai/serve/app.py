"""The HTTP routes of the server."""

import asyncio
import hmac
import json
import time
import traceback
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import Response
from loguru import logger
from starlette.exceptions import HTTPException

from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.run.fingerprint import version
from lmms_eval_mai.serve.body import read_body, until_disconnected
from lmms_eval_mai.serve.errors import RequestError, from_mai_error
from lmms_eval_mai.serve.reply import ReplyId, completion
from lmms_eval_mai.serve.schema import ChatRequest
from lmms_eval_mai.serve.service import Service
from lmms_eval_mai.serve.settings import Settings

BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": ChatRequest.model_json_schema()}}}}
"""The body of a chat request in the OpenAPI description. FastAPI does not read the body, because it has no limits."""


def make_app(service: Service) -> FastAPI:
    """Return the application of a service whose engines run."""
    app = FastAPI(title="lmms-eval-mai", version=version("lmms-eval-mai"), docs_url=None, redoc_url=None)
    app.add_exception_handler(RequestError, _request_error)
    app.add_exception_handler(MaiError, _mai_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected_error)
    app.include_router(_health_routes(service))
    app.include_router(_api_routes(service))
    return app


def json_response(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON reply. It is ASCII, so that half of a surrogate pair in a text cannot break it."""
    return Response(json.dumps(value), status, dict(headers or {}), "application/json")


def _health_routes(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.get("/health")
    async def health() -> Response:
        """Tell that the server answers requests, and how many it has now."""
        return json_response({"status": "ok", "requests": service.admission.count})

    return routes


def _api_routes(service: Service) -> APIRouter:
    settings, started = service.settings, int(time.time())
    model = {"id": settings.model_name, "object": "model", "created": started, "owned_by": "lmms-eval-mai"}
    routes = APIRouter(prefix="/v1", dependencies=[Depends(_key_check(settings))])

    @routes.get("/models")
    async def models() -> Response:
        """List the pair that is served."""
        return json_response({"object": "list", "data": [model]})

    @routes.get("/models/{name:path}")
    async def one_model(name: str) -> Response:
        """Describe the pair that is served."""
        if name != settings.model_name:
            raise RequestError(404, f"The model {name[:100]!r} is not served here.", "model_not_found", "model")
        return json_response(model)

    @routes.post("/chat/completions", openapi_extra=BODY)
    async def chat_completions(request: Request) -> Response:
        """Answer the question of a chat."""
        with service.admission.admitted():
            return await _answer(service, request)

    return routes


async def _answer(service: Service, request: Request) -> Response:
    timeout = service.settings.request_timeout
    try:
        async with asyncio.timeout(timeout):
            question = await service.read(await read_body(request, service.settings))
            asked = asyncio.wrap_future(service.submit(question))
            trace = await until_disconnected(request.receive, asked)
    except TimeoutError:
        text = f"The request was not answered within {timeout:g} s (--request-timeout). Its calls were cancelled."
        raise RequestError(504, text, "request_timeout") from None
    reply_id = ReplyId(service.settings.model_name)
    return json_response(completion(reply_id, question, trace), headers={"x-request-id": reply_id.id})


def _key_check(settings: Settings) -> Any:
    """Return a function that refuses requests without the key."""
    expected = None if settings.api_key is None else f"Bearer {settings.api_key}".encode()

    async def check(request: Request) -> None:
        given = request.headers.get("authorization", "").encode("utf-8", "surrogatepass")
        if expected is not None and not hmac.compare_digest(given, expected):
            text = "The API key is missing or wrong. Send the header Authorization: Bearer KEY."
            raise RequestError(401, text, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    return check


async def _request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return json_response(error.body(), error.status, error.headers)


async def _mai_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, MaiError)
    return await _request_error(request, from_mai_error(error))


async def _http_error(request: Request, error: Exception) -> Response:
    """Reply to a path or a method that does not exist."""
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path[:100]} is not supported ({error.detail})."
    found = RequestError(error.status_code, text, "not_found", headers=error.headers or {})
    return await _request_error(request, found)


async def _unexpected_error(request: Request, error: Exception) -> Response:
    """Log where the error is, without its message: the message may contain the text of a prompt."""
    where = "".join(traceback.format_tb(error.__traceback__))
    logger.error(f"mai_cascade: unexpected {type(error).__name__} in a request:\n{where}")
    text = "An unexpected error happened in lmms-eval-mai. The log of the server shows where."
    return await _request_error(request, RequestError(500, text, "internal_error"))
