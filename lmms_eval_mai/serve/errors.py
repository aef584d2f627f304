"""Errors of requests, in the shape of OpenAI's API: a status, a sentence, a type and a code."""

import math
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field

from loguru import logger
from starlette.exceptions import HTTPException
from starlette.requests import Request

from lmms_eval_mai import errors
from lmms_eval_mai.redaction import error_text, one_line

REPLIES: dict[type[Exception], tuple[int, str, str]] = {
    errors.PromptTooLong: (400, "context_length_exceeded", "The prompt does not fit the context of a model."),
    errors.UnreadableImage: (400, "invalid_image", "A model refuses an image."),
    errors.RequestRefused: (400, "request_refused", "A model refuses a value of the request."),
    errors.CallTimeout: (504, "call_timeout", "A call to a model took too long and was cancelled."),
    errors.EngineCrashedByCall: (422, "engine_crashed_by_request", "A model crashes whenever it answers this request."),
    errors.EndpointBusy: (503, "endpoint_busy", "A model reports a temporary error. Send the request again later."),
    errors.EndpointRefused: (503, "engine_down", "A model does not run now. Send the request again later."),
    errors.EngineCrashed: (503, "engine_down", "A model does not run now. Send the request again later."),
    errors.MaiError: (500, "sample_failed", "A call to a model failed. The log of the server has the reason."),
    Exception: (500, "internal_error", "An error in lmms-eval-mai. The log of the server shows where."),
}
"""Error of a question -> status, code and sentence of its reply; `app.py` raises those of HTTP, such as 429. The first
one that fits is used. The error's own text may have the address of a model's server, its reply, or the path of a
checkpoint. So it is only logged. Of what a model in this process refuses, the reply has the cause."""


@dataclass(eq=False)
class RequestError(Exception):
    """Raised when a request gets an error as its reply."""

    status: int
    message: str
    code: str
    param: str | None = None
    """The field of the request that is wrong."""
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, dict[str, str | None]]:
        category = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": category, "param": self.param, "code": self.code}}


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> RequestError:
    return RequestError(400, message, code, param)


def wrong_path(request: Request, error: HTTPException) -> RequestError:
    """Return the error about a path or a method that does not exist."""
    paths = ", ".join(f"{'/'.join(sorted(route.methods))} {route.path}" for route in request.app.routes)
    text = f"The server has no {request.method} {one_line(request.url.path)[:100]}. It has {paths}."
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    return RequestError(error.status_code, text, code, headers=error.headers or {})


def to_request_error(error: Exception) -> RequestError:
    """Return the reply for an error, and log an error that is not the fault of the request."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, errors.ArgumentError):  # the server's engines or its decoding cannot do what is asked
        return bad_request(str(error))
    status, code, sentence = next(reply for raised, reply in REPLIES.items() if isinstance(error, raised))
    if isinstance(error, errors.MaiError):
        logger.log("DEBUG" if status == 400 else "WARNING", f"mai_cascade: status {status}: {error_text(error)}")
    else:  # only where the error is: its message may have the text of a prompt
        where = "".join(traceback.format_tb(error.__traceback__, -5))
        logger.error(f"mai_cascade: unexpected {type(error).__name__} in a request:\n{where}")
    if status == 503:
        seconds = error.retry_after_s or 1 if isinstance(error, errors.EndpointBusy) else 10
        headers = {"Retry-After": str(math.ceil(seconds))}
    else:  # without this header, `openai` clients would send a request again that fails again
        headers = {"x-should-retry": "false"}
    param = "messages" if status == 400 else None
    return RequestError(status, _with_reason(sentence, error), code, param, headers)


def _with_reason(sentence: str, error: Exception) -> str:
    if isinstance(error, errors.PromptTooLong) and error.context is not None:  # some clients look for OpenAI's words
        length = "more" if error.length is None else f"at least {error.length}"
        return f"This model's maximum context length is {error.context} tokens, and the prompt has {length}."
    if isinstance(error, errors.UnreadableImage | errors.RequestRefused) and (cause := error.__cause__) is not None:
        return f"{sentence.removesuffix('.')} ({error_text(cause.__cause__ or cause).rstrip('.')})."
    return sentence
