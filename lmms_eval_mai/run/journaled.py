"""An engine that asks nothing twice: what the journal holds is not asked, what is asked goes into the journal."""

import hashlib

from lmms_eval_mai.engines.base import Call, Engine, Image, Prompt, Sampling
from lmms_eval_mai.run.fingerprint import Identity
from lmms_eval_mai.run.journal import Journal


class JournaledEngine:
    """Any engine with a journal, under the contract of `Engine`."""

    def __init__(self, engine: Engine, journal: Journal) -> None:
        self.side = engine.side
        self._engine = engine
        self._journal = journal

    def validate(self) -> None:
        self._engine.validate()

    def describe(self) -> str:
        return self._engine.describe()

    def identity(self) -> Identity:
        return self._engine.identity()

    async def start(self) -> None:
        await self._engine.start()

    async def close(self) -> None:
        await self._engine.close()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        """Raises `JournalError` besides what the engine raises."""
        digest = prompt_digest(prompt, sampling)
        call = self._journal.find(prompt.key, digest)
        if call is None:
            call = await self._engine.generate(prompt, sampling)
            images = [
                block.uuid for message in prompt.messages for block in message.content if isinstance(block, Image)
            ]
            await self._journal.add_call(call, digest, images)
        return call

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        return await self._engine.truncate_thinking(prompt, thinking, sampling)


def prompt_digest(prompt: Prompt, sampling: Sampling) -> str:
    """The hash of all that the engine is asked: roles, texts, the hashes of the images' pixels, and sampling."""
    found = hashlib.blake2b(repr(sampling).encode(), digest_size=16)
    for message in prompt.messages:
        found.update(b"\0turn" + message.role.encode())
        for block in message.content:
            kind, text = ("image", block.uuid) if isinstance(block, Image) else ("text", block)
            found.update(f"\0{kind}{text}".encode("utf-8", "surrogatepass"))
    return found.hexdigest()
