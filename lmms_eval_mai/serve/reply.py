"""The reply to a chat request, in the shape of OpenAI's API."""

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from lmms_eval_mai.paper.sample import Trace
from lmms_eval_mai.run.trace_record import trace_record
from lmms_eval_mai.serve.question import PASSED_ON, Question


@dataclass(frozen=True)
class ReplyId:
    """The fields that name a reply."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    """Unix time in seconds."""


def completion(reply_id: ReplyId, question: Question, trace: Trace) -> dict[str, Any]:
    """Return the body of a reply that is not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": content_of(question, trace)}
    if (thinking := thinking_of(trace)) is not None:
        message["reasoning_content"] = thinking
    return {
        "id": reply_id.id,
        "object": "chat.completion",
        "created": reply_id.created,
        "model": reply_id.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason_of(trace), "logprobs": None}],
        "usage": usage_of(trace),
        "mai": mai_of(question, trace),
    }


def content_of(question: Question, trace: Trace) -> str:
    """Return the answer without its brackets, or the whole text of a model that got the chat as it is."""
    return trace.text if question.variant is not None else trace.answer.text


def thinking_of(trace: Trace) -> str | None:
    """Return the thinking. None: no model was asked to think."""
    return next((call.text for call in trace.calls if call.key.stage == "think"), None)


def finish_reason_of(trace: Trace) -> str:
    """Return why the last call ended, in OpenAI's words."""
    return "stop" if trace.answer.finish_reason == "stop" else "length"


def usage_of(trace: Trace) -> dict[str, Any]:
    """Return the tokens of all calls together."""
    prompt = sum(call.prompt_tokens for call in trace.calls)
    output = sum(call.output_tokens for call in trace.calls)
    thinking = sum(call.output_tokens for call in trace.calls if call.key.stage == "think")
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(call.cached_tokens for call in trace.calls)},
        "completion_tokens_details": {"reasoning_tokens": thinking},
    }


def mai_of(question: Question, trace: Trace) -> dict[str, Any]:
    """Return the field `mai`: how the question was asked, its exit, and the trace."""
    found: dict[str, Any] = {"mode": question.mode, "kind": question.kind, "exit": trace.exit}
    if question.variant is None:
        found["note"] = PASSED_ON
    return {**found, **trace_record(trace)} if question.with_trace else found
