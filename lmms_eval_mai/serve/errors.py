"""Errors of requests, in the shape of OpenAI's API: a status, a sentence, a type and a code."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loguru import logger
from starlette.responses import Response

from lmms_eval_mai.errors import (
    CallTimeout,
    EndpointBusy,
    EndpointRefused,
    EngineCrashed,
    EngineCrashedByCall,
    MaiError,
    PromptTooLong,
    UnreadableImage,
)
from lmms_eval_mai.redaction import error_text

RETRY_AFTER_CRASH_S = 10
RETRY_AFTER_BUSY_S = 1
"""Seconds, if the endpoint of a model asks for a shorter wait or for none."""

TYPES = {401: "authentication_error", 429: "rate_limit_error", 503: "service_unavailable_error", 504: "timeout_error"}
"""Status -> the type of the error in its reply, if it is not that of all other statuses below 500 or from 500 on."""

REPLIES: dict[type[MaiError], tuple[int, str, str]] = {
    PromptTooLong: (400, "context_length_exceeded", "The prompt does not fit the context of a model. Send less text, "
                    "or smaller images."),
    UnreadableImage: (400, "invalid_image", "A model cannot use an image of the request. Send it in another size."),
    CallTimeout: (504, "call_timeout", "A call to a model took too long and was cancelled."),
    EngineCrashedByCall: (422, "engine_crashed_by_request", "A model crashes whenever it answers this request."),
    EndpointBusy: (503, "endpoint_busy", "A model reports a temporary error. Send the request again later."),
    EndpointRefused: (503, "engine_down", "A model does not run now. Send the request again later."),
    EngineCrashed: (503, "engine_down", "A model does not run now. Send the request again later."),
    MaiError: (500, "sample_failed", "A call to a model failed. The log of the server has the reason."),
}  # fmt: skip
"""Error -> status, code and sentence of its reply. The first one that fits is used. The error's own text may have the
address of a model's server, its reply, or the path of a checkpoint. So it is only logged."""


@dataclass(eq=False)
class RequestError(Exception):
    """Raised when a request gets an error as its reply."""

    status: int
    message: str
    code: str
    param: str | None = None
    """The field of the request that is wrong."""
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        """Return the body of the reply."""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad_request(message: str, code: str = "invalid_value", param: str | None = None) -> RequestError:
    """Return an error about a request that cannot be answered as it is."""
    return RequestError(400, message, code, param)


def to_request_error(error: MaiError | RequestError) -> RequestError:
    """Return the reply for an error, and log an error of an engine that is not the fault of the request."""
    if isinstance(error, RequestError):
        return error
    status, code, message = next(reply for kind, reply in REPLIES.items() if isinstance(error, kind))
    if status == 400:
        return RequestError(status, message, code, "messages")
    logger.warning(f"mai_cascade: a request gets the status {status}: {error_text(error)}")
    headers = {"x-should-retry": "false"}  # the `openai` client must not send the same request again
    if isinstance(error, EndpointBusy):
        headers = {"Retry-After": str(math.ceil(max(error.retry_after_s, RETRY_AFTER_BUSY_S)))}
    elif status == 503:
        headers = {"Retry-After": str(RETRY_AFTER_CRASH_S)}
    return RequestError(status, message, code, headers=headers)


def json_response(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON reply. It is ASCII, so that half of a surrogate pair in a text cannot break it."""
    return Response(json.dumps(value), status, dict(headers or {}), "application/json")
