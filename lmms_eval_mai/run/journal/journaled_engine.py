"""Returns journaled calls without calling the engine, and journals new ones."""

import hashlib

from lmms_eval_mai.contract import Call, Engine, Image, Prompt, Sampling
from lmms_eval_mai.engines.wrapper import EngineWrapper
from lmms_eval_mai.run.journal.journal import Journal


class JournaledEngine(EngineWrapper):
    """An engine whose calls are journaled."""

    def __init__(self, engine: Engine, journal: Journal) -> None:
        super().__init__(engine)
        self._journal = journal

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        """Raises the engine's errors, and `JournalError`."""
        digest = prompt_digest(prompt, sampling)
        call = self._journal.find(prompt.key, digest)
        if call is None:
            call = await self._engine.generate(prompt, sampling)
            images = [part.uuid for message in prompt.messages for part in message.content if isinstance(part, Image)]
            await self._journal.add_call(call, digest, images)
        return call


def prompt_digest(prompt: Prompt, sampling: Sampling) -> str:
    """Return the hash of the whole request: roles, texts, the hashes of the images' pixels, sampling and attention."""
    found = hashlib.blake2b(repr(sampling).encode(), digest_size=16)
    for message in prompt.messages:
        found.update(b"\0turn" + message.role.encode())
        for part in message.content:
            kind, text = ("image", part.uuid) if isinstance(part, Image) else ("text", part)
            found.update(f"\0{kind}{text}".encode("utf-8", "surrogatepass"))
    if prompt.attention is not None:  # a request without it keeps the digest that older journals have
        found.update(f"\0{prompt.attention!r}".encode("utf-8", "surrogatepass"))
    return found.hexdigest()
