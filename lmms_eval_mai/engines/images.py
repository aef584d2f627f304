"""Images as the engines take them: decoded, in RGB, with a hash of their pixels."""

import hashlib

import PIL.Image

from lmms_eval_mai.contract import Image

STRIP = 256
"""Rows of an image that are hashed at once."""


def to_image(pixels: PIL.Image.Image) -> Image:
    """Decode an image and convert it to RGB. Raises an `OSError` or another error of Pillow if it is broken.

    What a file has beside its pixels is dropped: Pillow keeps the texts of a PNG in `info`, where a compressed text of
    1 kB may need 1 MiB. The given image is not changed.
    """
    rgb = pixels.convert("RGB")  # a copy, also of an RGB image
    rgb.info = {}
    digest = hashlib.blake2b(f"{rgb.width}x{rgb.height}".encode(), digest_size=16)
    for top in range(0, rgb.height, STRIP):  # not all bytes at once, which a large image has in memory already
        digest.update(rgb.crop((0, top, rgb.width, min(top + STRIP, rgb.height))).tobytes())
    return Image(rgb, digest.hexdigest())
