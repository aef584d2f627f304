"""The program of a renderer process: it gets requests from `renderer_process.py` and answers them one by one.

Argument 1: descriptor of a socket. Argument 2: process id of the parent. The process ends when the parent closes the
socket or ends.
"""

import asyncio
import contextlib
import logging
import os
import pickle
import resource
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import PIL.Image

from lmms_eval_mai.contract import Image, Message
from lmms_eval_mai.engines.vllm import logs, shared_memory

POLL_S = 1.0


@dataclass(frozen=True)
class SentImage:
    """An image on its way to a renderer process."""

    uuid: str
    pixels: np.ndarray[Any, Any] | None
    """None: the process should have the prepared image in its cache."""


def sent_part(part: Any, known: set[str]) -> Any:
    """Return the text, or the image without the pixels if the process has prepared it."""
    if not isinstance(part, Image):
        return part
    return SentImage(part.uuid, None if part.uuid in known else np.asarray(part.pixels))


@dataclass(frozen=True)
class Render:
    """Request: render a chat. The answer is the input of vLLM's engine, or `ImagesMissing`."""

    messages: tuple[Message, ...]
    """With a `SentImage` in place of each image."""


@dataclass(frozen=True)
class ImagesMissing:
    """Answer: the chat has an image without pixels that is not in the cache. Send it again with all pixels."""


@dataclass(frozen=True)
class ClearCache:
    """Request: empty the cache of prepared images."""


@dataclass(frozen=True)
class Failed:
    """Answer: the error of a request. `cause` is the error's cause, which pickle would lose."""

    error: BaseException
    cause: BaseException | None

    @classmethod
    def from_error(cls, error: BaseException) -> "Failed":
        return cls(_picklable(error), _picklable(error.__cause__) if error.__cause__ else None)


def main() -> None:
    """Answer requests until the parent closes the socket. The first request is the pickled configuration of vLLM."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_end_with_parent, args=(int(sys.argv[2]),), daemon=True).start()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each prepared image has a descriptor
    logging.captureWarnings(True)
    logs.hide_harmless_warnings()
    import vllm.renderers  # noqa: F401 - takes seconds, while the parent starts the engine

    with contextlib.suppress(EOFError, OSError):
        answer_all(channel)
    os._exit(0)  # the interpreter would free a million objects one by one


def answer_all(channel: socket.socket) -> None:
    """Answer all requests. Raises `EOFError` or `OSError` if the parent closes the socket."""
    server: _Server | None = None
    while True:
        request = shared_memory.receive(channel)
        answer: Any = None
        try:
            if server is None:
                server = _Server(pickle.loads(request))
            else:
                answer = server.answer(request)
        except Exception as error:
            answer = Failed.from_error(error)
        shared_memory.send(channel, answer)


class _Server:
    """Renders chats with vLLM's renderer."""

    def __init__(self, vllm_config: Any) -> None:
        from vllm.renderers import renderer_from_config

        from lmms_eval_mai.engines.vllm.renderer import Renderer

        self._renderer = Renderer(renderer_from_config(vllm_config))
        self._loop = asyncio.new_event_loop()

    def answer(self, request: Render | ClearCache) -> Any:
        if isinstance(request, ClearCache):
            return self._loop.run_until_complete(self._renderer.clear_caches())
        images = [part for message in request.messages for part in message.content if isinstance(part, SentImage)]
        if any(image.pixels is None and not self._renderer.has_prepared(image.uuid) for image in images):
            return ImagesMissing()
        messages = tuple(Message(one.role, tuple(map(_received, one.content))) for one in request.messages)
        rendered = dict(self._loop.run_until_complete(self._renderer.render(messages)))
        _share_prepared_images(rendered)
        return rendered


def _received(part: Any) -> Any:
    """Return the text or the image. Pixels that were not sent are not needed: vLLM uses the prepared image."""
    if not isinstance(part, SentImage):
        return part
    pixels = PIL.Image.new("RGB", (1, 1)) if part.pixels is None else PIL.Image.fromarray(part.pixels)
    return Image(pixels, part.uuid)


def _share_prepared_images(rendered: dict[str, Any]) -> None:
    """Move the large tensors of prepared images to shared memory. vLLM's cache keeps the same objects, so this happens
    once per image."""
    import torch

    for items in rendered.get("mm_kwargs", {}).values():
        for item in items:
            for field in item.values():
                if isinstance(field.data, torch.Tensor):
                    field.data = shared_memory.shared_copy(field.data)


def _picklable(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _end_with_parent(parent: int) -> None:
    """The end of the socket is not enough: a process that was forked from the parent may keep it open, and this process
    may be importing or rendering."""
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os._exit(1)
