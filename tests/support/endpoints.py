"""An openai engine on real HTTP servers on loopback, without a model."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import PIL.Image
from aiohttp import web
from scripted_server import ScriptedServer

from lmms_eval_mai.contract import CallKey, Image, Message, Prompt, Sampling
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.openai.engine import OpenAIEngine
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.event_loop import LoopThread

SAMPLING = Sampling(max_tokens=16)


def noise_image(size: tuple[int, int] = (64, 48)) -> Image:
    return Image(PIL.Image.effect_noise(size, 60).convert("RGB"), f"noise-{size}")


def prompt(doc_id: int = 0, image: Image | None = None, text: str = "What is it?") -> Prompt:
    content = (image, text, " Answer.") if image else (text,)
    return Prompt((Message("user", content),), CallKey("t", doc_id, 0, "small", "short"))


def engine_of(urls: str, **arguments: Any) -> OpenAIEngine:
    config = parse({"small": urls, "mode": "small", **{f"small_{name}": value for name, value in arguments.items()}})
    engine = build(config.small)
    assert isinstance(engine, OpenAIEngine)
    engine.validate()
    return engine


def with_servers(
    servers: list[ScriptedServer], use: Callable[[OpenAIEngine], Awaitable[Any]], start: bool = True, **arguments: Any
) -> Any:
    """Run `use` with an engine on these servers, and return its result."""

    async def run() -> Any:
        runners, urls = [], []
        for server in servers:
            runners.append(web.AppRunner(server.app(), shutdown_timeout=0.1))
            await runners[-1].setup()
            site = web.TCPSite(runners[-1], "127.0.0.1", 0)
            await site.start()
            urls.append(f"http://127.0.0.1:{runners[-1].addresses[0][1]}/v1")
        engine = engine_of(f"[{','.join(urls)}]", **{"retry_for": 5, **arguments})
        try:
            if start:
                await engine.start()
            return await use(engine)
        finally:
            await engine.close()
            for runner in runners:
                await runner.cleanup()

    return asyncio.run(run())


@contextlib.contextmanager
def served(server: ScriptedServer) -> Iterator[str]:
    """Run a server in a thread of its own, and yield its address."""
    loop, runner = LoopThread(), web.AppRunner(server.app(), shutdown_timeout=0.1)
    try:
        loop.run(runner.setup())
        loop.run(web.TCPSite(runner, "127.0.0.1", 0).start())
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        loop.run(runner.cleanup())
        loop.close()


async def call(engine: OpenAIEngine) -> Any:
    """Make one call. An error is returned like an answer."""
    return (await asyncio.gather(engine.generate(prompt(), SAMPLING), return_exceptions=True))[0]
