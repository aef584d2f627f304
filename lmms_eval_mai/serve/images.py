"""Images of a request: data URLs and downloaded files, decoded with limits."""

import base64
import binascii
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import PIL.Image
import PIL.ImageFile

from lmms_eval_mai.contract import Image
from lmms_eval_mai.errors import UnreadableImage
from lmms_eval_mai.redaction import one_line
from lmms_eval_mai.run.ask import decode
from lmms_eval_mai.serve.errors import bad_request

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Formats that are decoded. Pillow's others start programs or are rare, so they only make attacks easier."""

MAX_URL = 8192
"""Characters of an http address."""

_DATA_URL = re.compile(r"data:image/[\w.+-]{1,40};base64,", re.IGNORECASE)


@dataclass(frozen=True)
class EncodedImage:
    """An image of a request that is not decoded yet."""

    number: int
    """Its place among the images of the request, from 1."""
    data: str | bytes = field(repr=False)
    """Base64, or the bytes of a downloaded file."""


@dataclass(frozen=True)
class RemoteImage:
    """An image of a request that is not downloaded yet."""

    number: int
    """Its place among the images of the request, from 1."""
    url: str = field(repr=False)


def refuse_truncated_images() -> None:
    """Let Pillow refuse images without their end, in the whole process. lmms-eval lets it fill them with grey
    (lmms_eval/api/task.py), and the models would answer about the grey."""
    PIL.ImageFile.LOAD_TRUNCATED_IMAGES = False


def image_at(url: str, number: int, with_downloads: bool) -> EncodedImage | RemoteImage:
    """Return the image of a data URL or, if the server downloads images, of an http address. Raises `RequestError` for
    every other address."""
    found = _DATA_URL.match(url[:100])
    if found is not None:
        return EncodedImage(number, url[found.end() :])
    if with_downloads and url[:8].lower().startswith(("http://", "https://")):
        if len(url) > MAX_URL:
            raise bad_request(f"The address of image {number} is too long.", "invalid_image_url", "messages")
        return RemoteImage(number, url)
    expected = "neither a data URL nor an http address." if with_downloads else (
        "not a data URL. This server downloads no images: send the image itself, as data:image/png;base64,..."
    )  # fmt: skip
    raise bad_request(f"Image {number} is {expected}", "invalid_image_url", "messages")


def decode_images(images: Sequence[EncodedImage], max_pixels: int) -> list[Image]:
    """Decode the images of a request. `max_pixels`: the largest number of pixels of all together; it is checked before
    the first one is decoded. This blocks, so run it in a thread. Raises `UnreadableImage`."""
    opened = [_open(image) for image in images]
    pixels = sum(image.width * image.height for image in opened)
    if pixels > max_pixels:
        raise UnreadableImage(
            f"The images of this request have {pixels:,} pixels, and this server decodes at most {max_pixels:,} "
            "(--max-image-megapixels). Send smaller images."
        )
    return [_decode(image, encoded) for image, encoded in zip(opened, images, strict=True)]


def _open(encoded: EncodedImage) -> PIL.Image.Image:
    """Read the header of an image."""
    data = encoded.data
    try:
        if isinstance(data, str):
            data = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise UnreadableImage(f"Image {encoded.number} is not valid base64.") from None
    try:
        return PIL.Image.open(io.BytesIO(data), formats=FORMATS)
    except PIL.Image.DecompressionBombError:
        raise UnreadableImage(f"Image {encoded.number} has too many pixels. Send a smaller image.") from None
    except Exception as error:  # broken files make Pillow raise errors of many kinds
        expected = ", ".join(FORMATS)
        raise UnreadableImage(f"Image {encoded.number} cannot be read. Send one of {expected}.") from error


def _decode(image: PIL.Image.Image, encoded: EncodedImage) -> Image:
    try:
        with image:
            return decode(image, f"Image {encoded.number}")
    except UnreadableImage:
        raise
    except Exception as error:  # as in `_open`
        raise UnreadableImage(f"Image {encoded.number} cannot be decoded ({one_line(str(error))}).") from error
