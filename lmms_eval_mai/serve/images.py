"""Images of a request: data URLs, decoded with limits."""

import base64
import contextlib
import ctypes
import io
import os
import re
import threading
from dataclasses import dataclass, field

import PIL.Image
import PIL.ImageFile
import PIL.PngImagePlugin

from lmms_eval_mai.contract import Image
from lmms_eval_mai.run.ask import decode
from lmms_eval_mai.serve.errors import RequestError, bad_request

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Formats that are decoded. Pillow's others start programs or are rare, so they only make attacks easier."""
MAX_TEXT_MEMORY = 2**20
"""Characters of all texts in a PNG. Pillow decompresses and keeps 64 times as many, with up to 4 bytes each."""
THREADS = min(8, os.cpu_count() or 1)
"""Images that are decoded at the same time, and bodies that are parsed at the same time."""

M_MMAP_THRESHOLD = -3
"""An option of glibc's `mallopt`."""

_DATA_URL = re.compile(r"data:image/[\w.+-]{1,40};base64,", re.IGNORECASE)
_DECODING = threading.BoundedSemaphore(THREADS)


@dataclass(frozen=True)
class EncodedImage:
    """An image of a request that is not decoded yet."""

    number: int
    """Its place among the images of the request, from 1."""
    pixels: int
    data: bytes = field(repr=False)


def prepare_decoding() -> None:
    """Let Pillow refuse images whose pixels are not complete and PNG files with huge texts, in the whole process.
    lmms-eval lets it fill missing pixels with grey (lmms_eval/api/task.py), and the models would answer about the grey.

    Let glibc return large blocks to the system. By default, it keeps the memory of images after they were freed.
    """
    PIL.ImageFile.LOAD_TRUNCATED_IMAGES = False
    PIL.PngImagePlugin.MAX_TEXT_MEMORY = MAX_TEXT_MEMORY
    with contextlib.suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 8 * 2**20)


def read_image(url: str, number: int) -> EncodedImage:
    """Return the image of a data URL, and read its size. Raises `RequestError`."""
    found = _DATA_URL.match(url[:100])
    if found is None:
        raise bad_request(
            f"Image {number} is not a data URL. This server downloads no images: send the image itself, as "
            "data:image/png;base64,...",
            "invalid_image_url",
            "messages",
        )
    try:
        # A text that is not ASCII may need 4 bytes for each character, and a copy as much again.
        data = base64.b64decode(url[found.end() :] if url.isascii() else "%", validate=True)
    except ValueError:
        raise _invalid(number, "is not valid base64.") from None
    try:
        with PIL.Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return EncodedImage(number, image.width * image.height, data)
    except PIL.Image.DecompressionBombError:
        raise _invalid(number, "has too many pixels. Send a smaller image.") from None
    except Exception:  # broken files make Pillow raise errors of many kinds
        raise _invalid(number, f"cannot be read, or has too many texts. Send one of {', '.join(FORMATS)}.") from None


def decode_image(image: EncodedImage) -> Image:
    """Decode an image. This blocks, so run it in a thread. Raises `RequestError`."""
    try:
        with _DECODING, PIL.Image.open(io.BytesIO(image.data), formats=FORMATS) as opened:
            return decode(opened, f"Image {image.number}")
    except Exception:  # as in `read_image`
        raise _invalid(image.number, "cannot be decoded. It is broken or not complete.") from None


def _invalid(number: int, problem: str) -> RequestError:
    return bad_request(f"Image {number} {problem}", "invalid_image", "messages")
