"""The reply to a chat request, in the shape of OpenAI's API: at once, or in parts as server-sent events."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from lmms_eval_mai.paper.sample import Trace
from lmms_eval_mai.run.trace_record import trace_record
from lmms_eval_mai.serve.metrics import CallEvent
from lmms_eval_mai.serve.question import PASSED_ON, Question


class Reply:
    """The reply to one question."""

    def __init__(self, question: Question, model_name: str) -> None:
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self._question = question
        self._named = {"id": self.id, "created": int(time.time()), "model": model_name}

    def whole(self, trace: Trace) -> dict[str, Any]:
        """Return the body of a reply that is not streamed."""
        message = {"role": "assistant", "content": self._content(trace)}
        for call in trace.calls:
            if call.key.stage == "think":
                message["reasoning_content"] = call.text
        choice = {"index": 0, "message": message, "finish_reason": _finish_reason(trace), "logprobs": None}
        own = {"object": "chat.completion", "choices": [choice], "usage": _usage(trace), "mai": self._mai(trace)}
        return {**self._named, **own}

    async def parts(
        self, first: CallEvent | None, events: "asyncio.Queue[CallEvent | None]", trace: "asyncio.Future[Trace]"
    ) -> AsyncIterator[bytes]:
        """Yield the reply in parts: the steps of the cascade, the thinking and the answer. `first`: the first event of
        the question. `events`: the others, and None at their end. Raises the errors of `trace`.

        The steps are parts without a text, and not comments: some clients lose the text that follows a comment.
        """
        yield self._part({"role": "assistant", "content": ""})
        event = first
        while event is not None:
            thinking = event.call.text if event.call is not None and event.key.stage == "think" else None
            delta = {} if thinking is None else {"reasoning_content": thinking}
            yield self._part(delta, mai={"progress": f"{event.key.side} {event.key.stage} {event.state}"})
            event = await events.get()
        found = await trace
        yield self._part({"content": self._content(found)})
        yield self._part({}, _finish_reason(found), mai=self._mai(found))
        if self._question.with_usage:
            yield data_part({**self._named, "object": "chat.completion.chunk", "choices": [], "usage": _usage(found)})

    def _part(self, delta: Mapping[str, Any], finish_reason: str | None = None, **fields: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return data_part({**self._named, "object": "chat.completion.chunk", "choices": [choice], **fields})

    def _content(self, trace: Trace) -> str:
        """Return the answer without its brackets, or the whole text of a model that got the chat as it is."""
        return trace.text if self._question.variant is not None else trace.answer.text

    def _mai(self, trace: Trace) -> dict[str, Any]:
        """Return the field `mai`: how the question was asked, its exit, and the trace."""
        question = self._question
        found: dict[str, Any] = {"mode": question.mode, "kind": question.kind, "exit": trace.exit}
        if question.variant is None:
            found["note"] = PASSED_ON
        return {**found, **trace_record(trace)} if question.with_trace else found


def data_part(value: Mapping[str, Any]) -> bytes:
    """Return a value as a part of a streamed reply."""
    return f"data: {json.dumps(value)}\n\n".encode()


def _finish_reason(trace: Trace) -> str:
    """Return why the last call ended, in OpenAI's words."""
    return "stop" if trace.answer.finish_reason == "stop" else "length"


def _usage(trace: Trace) -> dict[str, Any]:
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
