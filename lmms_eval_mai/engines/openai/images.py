"""Pictures on their way to another machine: PNG in a data URL, encoded once a sample, in a thread."""

import asyncio
import base64
import io
import math
import weakref

from PIL.Image import Resampling

from lmms_eval_mai.engines.base import Image

_ENCODINGS: "weakref.WeakKeyDictionary[Image, dict[int | None, asyncio.Future[str]]]" = weakref.WeakKeyDictionary()
"""Image -> `max_pixels` -> its data URL. An entry lives as long as its sample; both engines of a pair share it."""


async def data_url(image: Image, max_pixels: int | None = None) -> str:
    """The picture as `data:image/png;base64,...`: PNG loses nothing, so a server sees the pixels that an engine in this
    process would. One of more than `max_pixels` is shrunk first, its proportions kept."""
    encodings = _ENCODINGS.setdefault(image, {})
    made = encodings.get(max_pixels)
    if made is None:
        made = encodings[max_pixels] = asyncio.ensure_future(asyncio.to_thread(_encode, image, max_pixels))
    return await asyncio.shield(made)  # another call may wait for it, too


def _encode(image: Image, max_pixels: int | None) -> str:
    pixels = image.pixels
    if max_pixels is not None and pixels.width * pixels.height > max_pixels:
        scale = math.sqrt(max_pixels / (pixels.width * pixels.height))
        size = max(1, int(pixels.width * scale)), max(1, int(pixels.height * scale))
        pixels = pixels.resize(size, Resampling.BICUBIC)
    file = io.BytesIO()
    pixels.save(file, "PNG", compress_level=1)  # half the time of the default for a tenth more bytes
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
