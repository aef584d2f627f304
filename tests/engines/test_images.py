"""Images as the engines take them."""

import io
from typing import Any

import numpy as np
import PIL.Image
import pytest
from PIL.PngImagePlugin import PngInfo

from lmms_eval_mai.engines.images import to_image

# Three pixels: a transparent one whose hidden colour is black, an opaque black one, and an opaque red one.
CHART = PIL.Image.new("RGBA", (3, 1))
CHART.putdata([(0, 0, 0, 0), (0, 0, 0, 255), (255, 0, 0, 255)])
PICTURE = PIL.Image.new("RGB", (4, 2), "white")


def saved(image: PIL.Image.Image, format: str, **options: Any) -> PIL.Image.Image:
    """Return the image after it was saved in a file and opened again."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return PIL.Image.open(file)


def test_texts_in_a_file_are_dropped_and_the_given_image_is_not_changed() -> None:
    info = PngInfo()
    info.add_text("a name", "a text")
    given = saved(PICTURE, "PNG", pnginfo=info)
    image = to_image(given)
    assert given.info["a name"] == "a text" and image.pixels.info == {}
    turned = to_image(PIL.Image.new("RGB", (2, 4), "white"))  # the uuid is that of the pixels
    assert image.uuid == to_image(PICTURE).uuid != turned.uuid


WHITE, BLACK, RED = (255,) * 3, (0,) * 3, (255, 0, 0)
BRIGHT = PIL.Image.fromarray(np.array([[0, 256, 0x8000, 0xFFFF]], np.uint16))
"""Values of 16 bits that a viewer shows as 0, 1, 128 and 255."""


@pytest.mark.parametrize(
    ("mode", "given", "expected"),
    [
        ("RGBA", CHART, [WHITE, BLACK, RED]),
        ("RGBA", PIL.Image.new("RGBA", (1, 1), (255, 0, 0, 128)), [(255, 127, 127)]),
        ("P", saved(CHART.quantize(), "PNG"), [WHITE, BLACK, RED]),
        ("I;16", saved(BRIGHT, "PNG"), [(value,) * 3 for value in (0, 1, 128, 255)]),
        ("I;16", saved(BRIGHT, "PNG", transparency=256), [BLACK, WHITE, (128,) * 3, WHITE]),
    ],
)
def test_a_transparent_image_is_put_on_white_and_of_16_bits_the_upper_8_are_kept(
    mode: str, given: PIL.Image.Image, expected: list[Any]
) -> None:
    assert given.mode == mode
    assert list(to_image(given).pixels.get_flattened_data()) == expected
    assert given.mode == mode  # unchanged


@pytest.mark.parametrize("mode", ["I", "F"])
def test_numbers_of_32_bits_are_refused(mode: str) -> None:
    with pytest.raises(OSError, match="32 bits"):
        to_image(PIL.Image.new(mode, (1, 1)))


@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_an_image_is_turned_upright_only_if_asked(format: str) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # turn it clockwise
    image = saved(PICTURE, format, exif=exif)
    assert to_image(image).pixels.size == (4, 2)
    assert to_image(image, upright=True).pixels.size == (2, 4)
