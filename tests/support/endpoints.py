"""An openai engine on real HTTP servers on loopback, without a model."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import PIL.Image
from aiohttp import web
from support.engines import LoopThread
from support.scripted_server import ScriptedServer

from lmms_eval_mai.contract import CallKey, EngineConfig, Image, Message, Prompt, Sampling
from lmms_eval_mai.engines.openai.engine import OpenAIEngine

SAMPLING = Sampling(max_tokens=16)


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
