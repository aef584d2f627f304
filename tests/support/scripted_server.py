"""An OpenAI-compatible server without a model, which tests how a client handles failures.

Every chat gets the same answer after the same time. But each of the first requests gets one of the `faults`, in their
order.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

Fault = tuple[int, dict[str, str]] | dict[str, Any] | Literal["hang", "drop", "abort"]
"""A status with headers, a reply of status 200, no answer (hang), a closed connection (drop), or an answer that the
engine aborted (abort)."""


Logprobs = list[dict[str, Any]]
"""An entry for each token: `token`, `logprob` and `bytes`."""


@dataclass
class ScriptedServer:
    """The server's answers, and the requests that it got."""

    models: tuple[str, ...] = ("scripted",)
    key: str | None = None
    text: str = "[[Yes]]"
    answer: Callable[[dict[str, Any]], tuple[dict[str, Any], str]] | None = None
    """Returns the message to the body of a request, and its finish reason. None: all messages have the text."""
    tokens: int = 5
    seconds: float = 0.0
    context: int | None = None
    """`max_model_len` in the list of models, as in vLLM and SGLang."""
    logprobs: Logprobs | Literal["refuse", "ignore"] = "ignore"
    """How the server treats `logprobs`: the tokens of its answer with their log-probabilities, a refusal of the request
    with status 400, or an answer without them."""
    lists_models: bool = True
    """Whether the server lists its models."""
    silent: bool = False
    """Whether the server accepts connections and never answers."""
    refusal: str = ""
    """The message of a fault with a status, instead of what names the status."""
    faults: deque[Fault] = field(default_factory=deque)
    seen: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of the requests."""
    answered: int = 0
    open: int = 0
    most_open: int = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/v1/models", self.list_models)
        app.router.add_post("/v1/chat/completions", self.chat)
        return app

    async def list_models(self, request: web.Request) -> web.Response:
        if self.silent:
            await asyncio.Event().wait()
        if not self.lists_models:
            raise web.HTTPNotFound
        if refused := self._refused(request):
            return refused
        extra = {} if self.context is None else {"max_model_len": self.context}
        models = [{"id": name, "object": "model", **extra} for name in self.models]
        return web.json_response({"object": "list", "data": models})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        if refused := self._refused(request):
            return refused
        body = await request.read()
        wants_logprobs = b'"logprobs": true' in body
        self.seen.append(json.loads(body))
        if wants_logprobs and self.logprobs == "refuse":
            error = {"message": "This model does not support the 'logprobs' parameter.", "param": "logprobs"}
            return web.json_response({"error": error}, status=400)
        fault = self.faults.popleft() if self.faults else None
        if fault == "drop" and request.transport is not None:
            request.transport.abort()
            return web.Response()
        elif fault == "hang":
            await asyncio.Event().wait()
        elif isinstance(fault, tuple):
            status, headers = fault
            error = {"message": self.refusal or f"a fault with status {status}", "type": "scripted", "code": status}
            return web.json_response({"error": error}, status=status, headers=headers)
        elif isinstance(fault, dict):
            return web.json_response(fault)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.open -= 1
        self.answered += 1
        found = None if self.answer is None else self.answer(self.seen[-1])
        answer = self._answer(*found or ({"content": self.text}, "abort" if fault == "abort" else "stop"))
        if wants_logprobs and self.logprobs != "ignore":
            answer["choices"][0]["logprobs"] = {"content": self.logprobs}
        return web.json_response(answer)

    def _refused(self, request: web.Request) -> web.Response | None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.key is None or given == self.key:
            return None
        error = {"message": f"Incorrect API key provided: {given}", "type": "auth", "code": 401}
        return web.json_response({"error": error}, status=401)

    def _answer(self, message: dict[str, Any], finish_reason: str) -> dict[str, Any]:
        message = {"role": "assistant", **message}
        usage = {"prompt_tokens": 50, "completion_tokens": self.tokens, "total_tokens": 50 + self.tokens}
        usage["prompt_tokens_details"] = {"cached_tokens": 32}  # type: ignore[assignment]
        choice = {"index": 0, "message": message, "finish_reason": finish_reason}
        return {"id": "x", "object": "chat.completion", "created": 0, "model": self.models[0], "choices": [choice],
                "usage": usage}  # fmt: skip
