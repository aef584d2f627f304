"""Images as the engines take them: decoded, in RGB, with a hash of their pixels."""

import hashlib

import numpy as np
import PIL.Image
import PIL.ImageOps

from lmms_eval_mai.contract import Image

STRIP = 256  # rows of an image that are hashed at once


def to_image(pixels: PIL.Image.Image, upright: bool = False) -> Image:
    """Decode an image and convert it to RGB. Raises an `OSError` or another error of Pillow if it is broken.

    `upright`: turn it as its EXIF data tell. What a file has beside its pixels is dropped: Pillow keeps the texts of a
    PNG in `info`, where a compressed text of 1 kB may need 1 MiB. The given image is not changed.
    """
    rgb = to_rgb(PIL.ImageOps.exif_transpose(pixels) if upright else pixels)
    rgb.info = {}
    digest = hashlib.blake2b(f"{rgb.width}x{rgb.height}".encode(), digest_size=16)
    for top in range(0, rgb.height, STRIP):  # not all bytes at once, which a large image has in memory already
        digest.update(rgb.crop((0, top, rgb.width, min(top + STRIP, rgb.height))).tobytes())
    return Image(rgb, digest.hexdigest())


def to_rgb(pixels: PIL.Image.Image) -> PIL.Image.Image:
    """Return a copy of an image in RGB with 8 bits, as a viewer shows it on a white page. Raises `OSError` if its
    numbers have no range of brightness.

    Pillow's own conversion drops the transparency, which shows the hidden colour, and makes every value of 16 bits
    above 255 white. vLLM's server and Qwen's image processor also put transparent images on white.
    """
    if pixels.mode in ("I", "F"):
        numbers = "integers" if pixels.mode == "I" else "floats"
        raise OSError(f"its pixels are {numbers} of 32 bits, whose range is unknown: save it with 8 or 16 bits")
    shown = _with_8_bits(pixels) if pixels.mode.startswith("I;16") else pixels
    if not shown.has_transparency_data:
        return shown.convert("RGB")  # a copy, also of an RGB image
    rgba = shown.convert("RGBA")
    on_white = PIL.Image.new("RGB", rgba.size, "white")
    on_white.paste(rgba, mask=rgba)
    return on_white


def _with_8_bits(pixels: PIL.Image.Image) -> PIL.Image.Image:
    """Return a grey image of 16 bits with the upper 8 of them, and its transparent value."""
    values = np.asarray(pixels)
    grey = PIL.Image.fromarray((values >> 8).astype(np.uint8))
    if "transparency" in pixels.info:
        grey.putalpha(PIL.Image.fromarray((values != pixels.info["transparency"]).astype(np.uint8) * 255))
    return grey
