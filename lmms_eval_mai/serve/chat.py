"""Answers one chat request: admission, body, question, and a reply at once or in parts."""

import asyncio
import time

from fastapi import Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.paper.sample import Trace
from lmms_eval_mai.serve.body import ClientGone, read_body, until_disconnected
from lmms_eval_mai.serve.errors import RequestError, json_response, to_request_error
from lmms_eval_mai.serve.question import Question
from lmms_eval_mai.serve.reply import ReplyId, completion
from lmms_eval_mai.serve.service import Service
from lmms_eval_mai.serve.streaming import Events, stream

STREAM_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
SENDING_S = 30
"""Seconds in which a client must take its reply."""


class ChatResponse(Response):
    """The reply to a chat request, which is read and answered while the reply is sent. So the request counts as
    admitted until the end of a streamed reply."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request. Raises `RequestError` or a `MaiError` if no part of the reply was sent yet."""
        service, began = self._service, time.monotonic()
        with service.admission.admitted():
            try:
                # The body has a limit of its own: a slow one must not take the time of the reply.
                question = await service.read(await read_body(Request(scope, receive), service.settings))
                async with asyncio.timeout(service.settings.request_timeout + SENDING_S):
                    send_reply = self._send_parts if question.streamed else self._send_at_once
                    await until_disconnected(receive, send_reply(question, began, scope, receive, send))
            except ClientGone:
                service.metrics.replied(ClientGone.STATUS)
            except TimeoutError:  # the client does not take its reply; uvicorn closes the connection
                service.metrics.replied(ClientGone.STATUS)

    async def _send_at_once(self, question: Question, began: float, scope: Scope, receive: Receive, send: Send) -> None:
        trace = await self._service.answer(question)
        self._answered(question, began, trace)
        reply_id = ReplyId(self._service.settings.model_name)
        response = json_response(completion(reply_id, question, trace), headers={"x-request-id": reply_id.id})
        await response(scope, receive, send)
        self._service.metrics.replied(200)

    async def _send_parts(self, question: Question, began: float, scope: Scope, receive: Receive, send: Send) -> None:
        events = Events()
        trace = asyncio.ensure_future(self._service.answer(question, events.observe))
        trace.add_done_callback(lambda _: events.end())
        try:
            first = await events.next()
            if first is None:
                await trace  # raises the error that prevented the first call
            reply_id = ReplyId(self._service.settings.model_name)
            headers = [*STREAM_HEADERS, (b"x-request-id", reply_id.id.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for part in stream(reply_id, question, first, events, trace):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            error = trace.exception()
            if error is None:
                self._answered(question, began, trace.result())
            await send({"type": "http.response.body", "body": b""})
            assert error is None or isinstance(error, MaiError | RequestError)  # `stream` raises all others
            self._service.metrics.replied(200 if error is None else to_request_error(error).status)
        finally:
            trace.cancel()
            await asyncio.gather(trace, return_exceptions=True)

    def _answered(self, question: Question, began: float, trace: Trace) -> None:
        self._service.metrics.answered(question.mode, trace, time.monotonic() - began)
