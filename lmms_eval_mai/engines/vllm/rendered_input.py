"""Renders a chat once for all calls that have the same chat at the same time: in a cascade the short answers of the
small and the large model have the same prompt."""

import asyncio
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from lmms_eval_mai.contract import Image, Message


class RenderedInput(dict[str, Any]):
    """The input of vLLM's engine for one call."""

    source: "_Rendering"
    """Keeps the rendering alive as long as this input, so that a later call with the same chat finds it."""

    @property
    def image_tokens(self) -> int:
        """The number of prompt tokens that stand for images."""
        places = self.get("mm_placeholders", {}).get("image", ())
        return sum(place.get_num_embeds() for place in places)


class RenderedInputs:
    """The renderings whose inputs are in use. They take no memory of their own: a rendering is forgotten with its last
    input."""

    def __init__(self) -> None:
        self._renderings: weakref.WeakValueDictionary[Any, _Rendering] = weakref.WeakValueDictionary()

    async def get(
        self, messages: tuple[Message, ...], render: Callable[[tuple[Message, ...]], Coroutine[Any, Any, Any]]
    ) -> RenderedInput:
        """Return the input for a chat. It is rendered only if no other call that has the same chat is in flight.

        The rendering is cancelled if all callers that wait for it are cancelled.
        """
        key = (id(asyncio.get_running_loop()), _key(messages))
        rendering = self._renderings.get(key)
        if rendering is None or rendering.failed:
            rendering = self._renderings[key] = _Rendering(render(messages))
        return await rendering.input()


class _Rendering:
    """One rendering, and the number of callers that wait for it."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._task = asyncio.ensure_future(work)
        self._waiting = 0
        self._cancelled = False

    @property
    def failed(self) -> bool:
        """Whether it was cancelled or ended with an error. An error that somebody keeps also keeps its rendering."""
        if self._cancelled or not self._task.done():
            return self._cancelled
        return self._task.cancelled() or self._task.exception() is not None

    async def input(self) -> RenderedInput:
        """Return an input of the caller's own. Its tensors are shared, because vLLM does not change them.

        vLLM waits with `asyncio.wait_for`, which before Python 3.12 loses a cancellation that arrives at the end of the
        wait (CPython issue #86296). So a cancelled caller does not wait for the end of the rendering.
        """
        self._waiting += 1
        try:
            rendered = await asyncio.shield(self._task)
        finally:
            self._waiting -= 1
            if not self._waiting and not self._task.done():
                self._cancelled = True
                self._task.cancel()
        own = RenderedInput(rendered, arrival_time=time.time())
        if "prompt_token_ids" in own:
            own["prompt_token_ids"] = list(own["prompt_token_ids"])
        own.source = self
        return own


def _key(messages: tuple[Message, ...]) -> Any:
    """Return a value that is equal for two chats with the same texts and images."""
    return tuple(
        (message.role, *((part.uuid,) if isinstance(part, Image) else part for part in message.content))
        for message in messages
    )
