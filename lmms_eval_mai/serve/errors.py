"""Errors of requests, in the shape of OpenAI's API: a status, a sentence, a type and a code."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi.responses import Response

from lmms_eval_mai.errors import (
    ArgumentError,
    CallTimeout,
    EndpointBusy,
    EngineCrashed,
    EngineCrashedByCall,
    MaiError,
    PromptTooLong,
    UnreadableImage,
)
from lmms_eval_mai.redaction import one_line

RETRY_AFTER_CRASH_S = 10
RETRY_AFTER_BUSY_S = 1
"""Seconds, if the endpoint of a model asks for a shorter wait or for none."""

TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "invalid_request_error",
         405: "invalid_request_error", 408: "invalid_request_error", 413: "invalid_request_error",
         422: "invalid_request_error", 429: "rate_limit_error", 503: "service_unavailable_error",
         504: "timeout_error"}  # fmt: skip
"""Status -> the type of the error in its reply. All other errors are `server_error`."""

FINAL = {"x-should-retry": "false"}
"""The header that tells the `openai` client not to send the same request again."""


@dataclass(eq=False)
class RequestError(Exception):
    """Raised when a request gets an error as its reply."""

    status: int
    message: str
    code: str
    param: str | None = None
    """The field of the request that is wrong."""
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Return the body of the reply."""
        kind = TYPES.get(self.status, "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad_request(message: str, code: str = "invalid_value", param: str | None = None) -> RequestError:
    """Return an error about a request that cannot be answered as it is."""
    return RequestError(400, message, code, param)


def from_mai_error(error: MaiError) -> RequestError:
    """Return the reply for an error of the cascade or of an engine."""
    text = one_line(str(error))
    text = text[:1].upper() + text[1:]
    if isinstance(error, PromptTooLong):
        return bad_request(text, "context_length_exceeded", "messages")
    if isinstance(error, UnreadableImage):
        return bad_request(text, "invalid_image", "messages")
    if isinstance(error, ArgumentError):
        return bad_request(text)
    if isinstance(error, CallTimeout):
        return RequestError(504, text, "call_timeout", headers=FINAL)
    if isinstance(error, EngineCrashedByCall):
        return RequestError(422, text, "engine_crashed_by_request", headers=FINAL)
    if isinstance(error, EndpointBusy):
        seconds = math.ceil(max(error.retry_after_s, RETRY_AFTER_BUSY_S))
        return RequestError(503, text, "endpoint_busy", headers={"Retry-After": str(seconds)})
    if isinstance(error, EngineCrashed):
        return RequestError(503, text, "engine_down", headers={"Retry-After": str(RETRY_AFTER_CRASH_S)})
    return RequestError(500, text, "sample_failed", headers=FINAL)


def to_request_error(error: MaiError | RequestError) -> RequestError:
    """Return the reply for an error of either kind."""
    return error if isinstance(error, RequestError) else from_mai_error(error)


def json_response(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON reply. It is ASCII, so that half of a surrogate pair in a text cannot break it."""
    return Response(json.dumps(value), status, dict(headers or {}), "application/json")
