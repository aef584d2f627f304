"""The base class of engines that wrap another engine."""

from lmms_eval_mai.contract import Call, Engine, Identity, Prompt, Sampling


class EngineWrapper:
    """Passes every call on to the wrapped engine. A subclass overrides the methods that it changes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def side(self) -> str:
        return self._engine.side

    def validate(self) -> None:
        self._engine.validate()

    def describe(self) -> str:
        return self._engine.describe()

    def identity(self) -> Identity:
        return self._engine.identity()

    def starts_alone(self) -> bool:
        return self._engine.starts_alone()

    def layers(self) -> int | None:
        return self._engine.layers()

    async def start(self) -> None:
        await self._engine.start()

    def is_up(self) -> bool:
        return self._engine.is_up()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        return await self._engine.generate(prompt, sampling)

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        return await self._engine.truncate_thinking(prompt, thinking, sampling)

    def count_tokens(self, text: str) -> int | None:
        return self._engine.count_tokens(text)

    async def clear_caches(self) -> None:
        await self._engine.clear_caches()

    async def close(self) -> None:
        await self._engine.close()
