"""Images as the engines take them: decoded, in RGB, with a hash of their pixels."""

import hashlib

import PIL.Image

from lmms_eval_mai.contract import Image


def to_image(pixels: PIL.Image.Image) -> Image:
    """Decode an image and convert it to RGB. Raises an `OSError` or another error of Pillow if it is broken."""
    rgb = pixels if pixels.mode == "RGB" else pixels.convert("RGB")
    digest = hashlib.blake2b(f"{rgb.width}x{rgb.height}".encode(), digest_size=16)
    digest.update(rgb.tobytes())
    return Image(rgb, digest.hexdigest())
