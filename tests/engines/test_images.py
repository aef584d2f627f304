"""Images as the engines take them."""

import io
import zlib

import PIL.Image
import pytest
from PIL.PngImagePlugin import PngInfo

from lmms_eval_mai.engines.images import to_image

SIZE = 1 << 17  # a server of an earlier test lets Pillow read texts of 1 MiB in all
COMPRESSED = zlib.compress(b"a" * SIZE)


def opened(mode: str, texts: int) -> PIL.Image.Image:
    """Return an opened PNG with compressed texts of 128 KiB each, before and after its pixels."""
    info = PngInfo()
    for number in range(texts):
        info.add_text(f"before {number}", "a" * SIZE, zip=True)
        info.add(b"zTXt", f"after {number}".encode() + b"\0\0" + COMPRESSED, after_idat=True)
    file = io.BytesIO()
    PIL.Image.new("RGB", (4, 2), "red").convert(mode).save(file, "PNG", pnginfo=info)
    assert len(file.getvalue()) < 10_000
    return PIL.Image.open(file)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L"])
def test_texts_in_a_file_are_dropped_and_the_given_image_is_not_changed(mode: str) -> None:
    given = opened(mode, texts=2)
    image = to_image(given)
    assert sum(isinstance(text, str) and len(text) == SIZE for text in given.info.values()) == 4
    assert image.pixels.info == {} and not hasattr(image.pixels, "text")
    assert image.pixels.mode == "RGB" and image.pixels.size == (4, 2)


def test_the_uuid_is_that_of_the_pixels() -> None:
    plain = to_image(PIL.Image.new("RGB", (4, 2), "red"))
    assert to_image(opened("RGB", texts=1)).uuid == plain.uuid != to_image(PIL.Image.new("RGB", (2, 4), "red")).uuid
