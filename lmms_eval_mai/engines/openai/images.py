"""Encodes images for an endpoint: PNG in a data URL, once per sample, in a thread."""

import asyncio
import base64
import math
import weakref

from PIL.Image import Resampling

from lmms_eval_mai.contract import Image
from lmms_eval_mai.engines.openai.png import encode_png

_ENCODINGS: "weakref.WeakKeyDictionary[Image, dict[int | None, asyncio.Future[str]]]" = weakref.WeakKeyDictionary()
"""For each image, its data URLs by `max_pixels`. An entry is kept as long as its sample; both engines use it."""


async def data_url(image: Image, max_pixels: int | None = None) -> str:
    """Return the image as `data:image/png;base64,...`.

    PNG is lossless, so a server sees the same pixels as an engine in this process. An image with more than `max_pixels`
    is made smaller first; its proportions stay.
    """
    encodings = _ENCODINGS.setdefault(image, {})
    encoding = encodings.get(max_pixels)
    if encoding is None:
        encoding = encodings[max_pixels] = asyncio.ensure_future(asyncio.to_thread(_encode, image, max_pixels))
    return await asyncio.shield(encoding)  # another call may wait for the same encoding


def _encode(image: Image, max_pixels: int | None) -> str:
    pixels = image.pixels
    if max_pixels is not None and pixels.width * pixels.height > max_pixels:
        scale = math.sqrt(max_pixels / (pixels.width * pixels.height))
        size = max(1, int(pixels.width * scale)), max(1, int(pixels.height * scale))
        pixels = pixels.resize(size, Resampling.BICUBIC)
    return "data:image/png;base64," + base64.b64encode(encode_png(pixels)).decode("ascii")
