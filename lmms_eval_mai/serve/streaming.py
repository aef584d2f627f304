"""A streamed reply: server-sent events with the steps of the cascade, the thinking and the answer."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.paper.sample import Trace
from lmms_eval_mai.serve.errors import RequestError, to_request_error
from lmms_eval_mai.serve.observer import CallEvent
from lmms_eval_mai.serve.question import Question
from lmms_eval_mai.serve.reply import ReplyId, content_of, finish_reason_of, mai_of, usage_of


class Events:
    """The events of one request, from the thread of the session to the event loop of the server."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[CallEvent | None] = asyncio.Queue()

    def observe(self, event: CallEvent) -> None:
        """Add an event, from any thread."""
        self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    def end(self) -> None:
        """Let `next` return None after the events so far."""
        self._queue.put_nowait(None)

    async def next(self) -> CallEvent | None:
        """Wait for the next event and return it. None: the question is answered or failed."""
        return await self._queue.get()


async def stream(
    reply_id: ReplyId,
    question: Question,
    first: CallEvent | None,
    events: Events,
    trace: "asyncio.Future[Trace]",
) -> AsyncIterator[bytes]:
    """Yield the reply in parts. An error after the first part is a part too, because the status is sent already.

    `first`: the first event of the question.
    """

    def chunk(delta: Mapping[str, Any], finish_reason: str | None = None, **fields: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return _data(_chunk(reply_id, [choice]) | fields)

    yield chunk({"role": "assistant", "content": ""})
    event = first
    while event is not None:
        yield f": {event.key.side} {event.key.stage} {event.state}\n\n".encode()
        if event.call is not None and event.key.stage == "think":
            yield chunk({"reasoning_content": event.call.text})
        event = await events.next()
    try:
        found = await trace
    except (MaiError, RequestError) as error:
        yield _data(to_request_error(error).body())
        return
    yield chunk({"content": content_of(question, found)})
    yield chunk({}, finish_reason_of(found), mai=mai_of(question, found))
    if question.with_usage:
        yield _data(_chunk(reply_id, []) | {"usage": usage_of(found)})
    yield b"data: [DONE]\n\n"


def _chunk(reply_id: ReplyId, choices: list[Any]) -> dict[str, Any]:
    named = {"id": reply_id.id, "object": "chat.completion.chunk", "created": reply_id.created, "model": reply_id.model}
    return {**named, "choices": choices}


def _data(value: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
