"""The HTTP routes of the server."""

import hmac
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import PlainTextResponse, Response
from loguru import logger
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.run.fingerprint import version
from lmms_eval_mai.serve.chat import ChatResponse
from lmms_eval_mai.serve.errors import RequestError, json_response, to_request_error
from lmms_eval_mai.serve.schema import ChatRequest
from lmms_eval_mai.serve.service import Service
from lmms_eval_mai.serve.settings import Settings

BODY_SCHEMA = ChatRequest.model_json_schema(ref_template="#/components/schemas/{model}")
PARTS_OF_BODY = BODY_SCHEMA.pop("$defs")
ERROR = {
    "description": "An error",
    "content": {"application/json": {"schema": {"type": "object", "required": ["error"]}}},
}
STREAM = {
    "description": "The answer, in parts if the request has `stream: true`",
    "content": {"text/event-stream": {}},
}


def make_app(service: Service) -> FastAPI:
    """Return the application of a service whose engines run."""
    app = FastAPI(title="lmms-eval-mai", version=version("lmms-eval-mai"), docs_url=None, redoc_url=None)
    for kind in (RequestError, MaiError, HTTPException, Exception):
        app.add_exception_handler(kind, _error_handler(service))
    app.include_router(_health_routes(service))
    app.include_router(_api_routes(service))
    app.openapi = lambda: _description(app)  # type: ignore[method-assign]
    return app


def _description(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description."""
    found = get_openapi(title=app.title, version=app.version, routes=app.routes)
    found.setdefault("components", {}).setdefault("schemas", {}).update(PARTS_OF_BODY)
    return found


def _health_routes(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.get("/health")
    async def health() -> Response:
        """Tell whether both engines answer calls, and how many requests the server has now."""
        down = [side for side, is_up in service.up().items() if not is_up]
        found = {"status": "engine_down" if down else "ok", "down": down, "requests": service.admission.count}
        return json_response(found, 503 if down else 200)

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Count requests, exits, calls, tokens, seconds and errors, for Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return routes


def _api_routes(service: Service) -> APIRouter:
    settings, started = service.settings, int(time.time())
    model = {"id": settings.model_name, "object": "model", "created": started, "owned_by": "lmms-eval-mai"}
    # FastAPI does not read the body itself, because it has no limits.
    schema = BODY_SCHEMA | {"properties": BODY_SCHEMA["properties"] | {"model": {"enum": [settings.model_name]}}}
    body = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
    routes = APIRouter(
        prefix="/v1", dependencies=[Depends(_key_check(settings))], responses={"4XX": ERROR, "5XX": ERROR}
    )

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

    @routes.post("/chat/completions", openapi_extra=body, responses={200: STREAM})
    async def chat_completions() -> Response:
        """Answer the question of a chat."""
        return ChatResponse(service)

    return routes


def _key_check(settings: Settings) -> Any:
    """Return a function that refuses requests without the key."""
    expected = None if settings.api_key is None else f"Bearer {settings.api_key}".encode()

    async def check(request: Request) -> None:
        given = request.headers.get("authorization", "").encode("latin-1")  # as the client sent it
        if expected is not None and not hmac.compare_digest(given, expected):
            text = "The API key is missing or wrong. Send the header Authorization: Bearer KEY."
            raise RequestError(401, text, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    return check


def _error_handler(service: Service) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def reply(request: Request, error: Exception) -> Response:
        found = _request_error(request, error)
        service.metrics.replied(found.status)
        return json_response(found.body(), found.status, found.headers)

    return reply


def _request_error(request: Request, error: Exception) -> RequestError:
    """Return the error that the reply has."""
    if isinstance(error, RequestError | MaiError):
        return to_request_error(error)
    if isinstance(error, HTTPException):  # a path or a method that does not exist
        text = f"{request.method} {request.url.path[:100]} is not supported ({error.detail})."
        return RequestError(error.status_code, text, "not_found", headers=error.headers or {})
    # Log where the error is, without its message: the message may contain the text of a prompt.
    where = "".join(traceback.format_tb(error.__traceback__))
    logger.error(f"mai_cascade: unexpected {type(error).__name__} in a request:\n{where}")
    text = "An unexpected error happened in lmms-eval-mai. The log of the server shows where."
    return RequestError(500, text, "internal_error")
