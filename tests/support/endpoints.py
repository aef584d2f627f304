"""An openai engine on real HTTP servers on loopback, without a model, which test how a client handles failures."""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import PIL.Image
from aiohttp import web
from support.engines import LoopThread

from lmms_eval_mai.contract import CallKey, EngineConfig, Image, Message, Prompt, Sampling
from lmms_eval_mai.engines.openai.engine import OpenAIEngine

SAMPLING = Sampling(max_tokens=16)

Fault = tuple[int, dict[str, str]] | dict[str, Any] | Literal["hang", "drop", "abort"]
"""A status with headers, a reply of status 200, no answer (hang), a closed connection (drop), or an answer that the
engine aborted (abort)."""


@dataclass
class ScriptedServer:
    """An OpenAI-compatible server without a model, and the requests that it got. Every chat gets the same answer after
    the same time. But each of the first requests gets one of the `faults`, in their order."""

    models: tuple[str, ...] = ("scripted",)
    key: str | None = None
    answer: Callable[[dict[str, Any]], tuple[dict[str, Any], str]] | None = None
    """Returns the message to the body of a request, and its finish reason. None: all messages are `[[Yes]]`."""
    seconds: float = 0.0
    context: int | None = None
    """`max_model_len` in the list of models, as in vLLM and SGLang."""
    logprobs: list[dict[str, Any]] | Literal["refuse", "ignore"] = "ignore"
    """How the server treats `logprobs`: an entry for each token of its answer (`token`, `logprob` and `bytes`), a
    refusal of the request with status 400, or an answer without them."""
    lists_models: bool = True
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
        answer = self._answer(*found or ({"content": "[[Yes]]"}, "abort" if fault == "abort" else "stop"))
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
        usage = {"prompt_tokens": 50, "completion_tokens": 5, "total_tokens": 55}
        usage["prompt_tokens_details"] = {"cached_tokens": 32}  # type: ignore[assignment]
        choice = {"index": 0, "message": message, "finish_reason": finish_reason}
        return {"id": "x", "object": "chat.completion", "created": 0, "model": self.models[0], "choices": [choice],
                "usage": usage}  # fmt: skip


def noise_image(size: tuple[int, int] = (64, 48)) -> Image:
    return Image(PIL.Image.effect_noise(size, 60).convert("RGB"), f"noise-{size}")


def prompt(doc_id: int = 0, image: Image | None = None, text: str = "What is it?", logprobs: bool = False) -> Prompt:
    content = (image, text, " Answer.") if image else (text,)
    key = CallKey("t", doc_id, 0, "small", "simple")
    return Prompt((Message("user", content),), key, logprobs=logprobs)


def engine_of(urls: str, **arguments: Any) -> OpenAIEngine:
    return OpenAIEngine(EngineConfig("small", "openai", urls, arguments))


@contextlib.asynccontextmanager
async def running(server: ScriptedServer, port: int = 0) -> AsyncIterator[str]:
    """Run a server in this event loop, and yield its address."""
    runner = web.AppRunner(server.app(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@contextlib.contextmanager
def served(server: ScriptedServer) -> Iterator[str]:
    """Run a server in a thread of its own, and yield its address."""
    loop, context = LoopThread(), running(server)
    try:
        yield loop.run(context.__aenter__())
    finally:
        loop.run(context.__aexit__(None, None, None))
        loop.close()


def with_servers(servers: list[ScriptedServer], use: Callable[[OpenAIEngine], Awaitable[Any]], **arguments: Any) -> Any:
    """Run `use` with a started engine on these servers, and return its result."""

    async def run() -> Any:
        async with contextlib.AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(running(server)) for server in servers]
            engine = engine_of(f"[{','.join(urls)}]", **{"retry_for": 5, **arguments})
            stack.push_async_callback(engine.close)
            await engine.start()
            return await use(engine)

    return asyncio.run(run())


async def call(engine: OpenAIEngine, **of_prompt: Any) -> Any:
    """Make one call. An error is returned like an answer."""
    return (await asyncio.gather(engine.generate(prompt(**of_prompt), SAMPLING), return_exceptions=True))[0]


async def until(condition: Callable[[], Any]) -> None:
    """Wait until the condition holds."""
    while not condition():  # noqa: ASYNC110 - it may hold at any time
        await asyncio.sleep(0)
