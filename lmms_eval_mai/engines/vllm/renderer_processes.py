"""Renders chats in several processes, because one thread prepares only 40 to 350 images per second.

An image always has the same process, chosen by its hash. So both models and all later calls of a sample find the
prepared image there. The other modules: `renderer_process.py` is the side of this process, `renderer_child.py` is the
program of a renderer process, and `shared_memory.py` passes images between them.
"""

import asyncio
import contextlib
import threading
import weakref
import zlib
from collections.abc import Iterator
from typing import Any

from lmms_eval_mai.contract import Image, Message
from lmms_eval_mai.engines.vllm.renderer import Renderer
from lmms_eval_mai.engines.vllm.renderer_process import RendererProcess, RendererStopped

_lock = threading.Lock()
_ahead: list[RendererProcess] = []
"""Processes that import vLLM while an engine starts, and have no configuration yet."""
_starts = 0
"""Engines that start now."""
_running: "weakref.WeakSet[RendererProcesses]" = weakref.WeakSet()


class RendererProcesses(Renderer):
    """A renderer that renders in other processes.

    This process also has a renderer of vLLM, for the tokens of texts, and for the prompts of a process that does not
    start any more.
    """

    def __init__(self, renderer: Any, vllm_config: Any, count: int) -> None:
        """Blocks until the processes have loaded tokenizer and processor."""
        super().__init__(renderer)
        self.processes = _take(count)
        weakref.finalize(self, _close, self.processes).atexit = False
        _running.add(self)
        for ready in [process.configure(vllm_config) for process in self.processes]:
            ready.result()

    async def clear_caches(self) -> None:
        await asyncio.gather(
            super().clear_caches(), *(asyncio.wrap_future(process.clear_cache()) for process in self.processes)
        )

    def close(self) -> None:
        """End the processes. Blocks until they have ended."""
        _running.discard(self)
        _close(self.processes)

    async def _render(self, messages: tuple[Message, ...]) -> Any:
        try:
            return await asyncio.wrap_future(self.processes[self._number(messages)].render(messages))
        except RendererStopped:
            return await super()._render(messages)

    def _number(self, messages: tuple[Message, ...]) -> int:
        """Return which process renders the chat."""
        return zlib.crc32(_name(messages).encode()) % len(self.processes)


def _name(messages: tuple[Message, ...]) -> str:
    """Return the name of the first image, or all text of a chat without an image."""
    parts = [part for message in messages for part in message.content]
    return next((part.uuid for part in parts if isinstance(part, Image)), "".join(map(str, parts)))


@contextlib.contextmanager
def started_ahead(count: int) -> Iterator[None]:
    """Start renderer processes that import vLLM while an engine starts inside the block.

    Does nothing if processes run already: they probably serve the new engine too. Processes that no engine has taken at
    the end of the last block are closed.
    """
    global _starts
    with _lock:
        _starts += 1
        if count > 1 and not _ahead and not _running:
            _ahead.extend(RendererProcess() for _ in range(count))
    try:
        yield
    finally:
        with _lock:
            _starts -= 1
            left = [] if _starts else _ahead[:]
            _ahead[:] = _ahead if _starts else []
        _close(left)


def _take(count: int) -> list[RendererProcess]:
    with _lock:
        taken, _ahead[:] = _ahead[:count], _ahead[count:]
    return taken + [RendererProcess() for _ in range(count - len(taken))]


def _close(processes: list[RendererProcess]) -> None:
    for process in processes:
        process.close()
