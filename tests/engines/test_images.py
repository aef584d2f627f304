"""Images as the engines take them."""

import io
import zlib
from typing import Any

import numpy as np
import PIL.Image
import pytest
from PIL.PngImagePlugin import PngInfo

from lmms_eval_mai.engines.images import to_image

# Three pixels: a transparent one whose hidden colour is black, an opaque black one, and an opaque red or grey one.
CHART = PIL.Image.new("RGBA", (3, 1))
CHART.putdata([(0, 0, 0, 0), (0, 0, 0, 255), (255, 0, 0, 255)])
PICTURE = PIL.Image.new("RGB", (4, 2), "white")
WHITE, BLACK, RED, GREY = (255,) * 3, (0,) * 3, (255, 0, 0), (76,) * 3
BRIGHT = np.array([[0, 256, 0x8000, 0xFFFF]], np.uint16)
"""Values of 16 bits that a viewer shows as 0, 1, 128 and 255."""


def saved(image: PIL.Image.Image, format: str, **options: Any) -> PIL.Image.Image:
    """Return the image after it was saved in a file and opened again."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return PIL.Image.open(file)


def plain(mode: str, values: list[Any]) -> PIL.Image.Image:
    image = PIL.Image.new(mode, (len(values), 1))
    image.putdata(values)
    return image


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L"])
def test_texts_in_a_file_are_dropped_and_the_given_image_is_not_changed(mode: str) -> None:
    info = PngInfo()
    info.add_text("before the pixels", "a")
    info.add(b"zTXt", b"after the pixels\0\0" + zlib.compress(b"a"), after_idat=True)
    given = saved(PICTURE.convert(mode), "PNG", pnginfo=info)
    image = to_image(given)
    assert given.info["before the pixels"] == given.info["after the pixels"] == "a"
    assert image.pixels.info == {} and not hasattr(image.pixels, "text")
    turned = to_image(PIL.Image.new("RGB", (2, 4), "white"))  # the uuid is that of the pixels
    assert image.pixels.mode == "RGB" and image.uuid == to_image(PICTURE).uuid != turned.uuid


GREY_CHART = CHART.convert("LA")
SEEN = [(value,) * 3 for value in (0, 1, 128, 255)]
SHOWN: dict[str, tuple[str, PIL.Image.Image, list[tuple[int, ...]]]] = {
    "RGBA": ("RGBA", CHART, [WHITE, BLACK, RED]),
    "RGBA, half transparent": ("RGBA", PIL.Image.new("RGBA", (1, 1), (255, 0, 0, 128)), [(255, 127, 127)]),
    "RGBa": ("RGBa", CHART.convert("RGBa"), [WHITE, BLACK, RED]),
    "PA": ("PA", CHART.convert("PA"), [WHITE, BLACK, RED]),
    "PNG with LA": ("LA", saved(GREY_CHART, "PNG"), [WHITE, BLACK, GREY]),
    "PNG with a palette": ("P", saved(CHART.quantize(), "PNG"), [WHITE, BLACK, RED]),
    "PNG with one colour": ("RGB", saved(plain("RGB", [BLACK, RED]), "PNG", transparency=BLACK), [WHITE, RED]),
    "PNG with one grey": ("L", saved(plain("L", [0, 76]), "PNG", transparency=0), [WHITE, GREY]),
    "PNG with one grey of 16 bits": (
        "I;16",
        saved(PIL.Image.fromarray(BRIGHT), "PNG", transparency=256),
        [BLACK, WHITE, (128,) * 3, WHITE],
    ),
    "PNG with 16 bits": ("I;16", saved(PIL.Image.fromarray(BRIGHT), "PNG"), SEEN),
    "TIFF with 16 bits": (
        "I;16B",
        saved(PIL.Image.frombytes("I;16B", (4, 1), BRIGHT.astype(">u2").tobytes()), "TIFF"),
        SEEN,
    ),
}
"""Name -> mode, image, and the pixels that a viewer shows."""


@pytest.mark.parametrize("name", SHOWN)
def test_a_transparent_image_is_put_on_white_and_of_16_bits_the_upper_8_are_kept(name: str) -> None:
    mode, given, expected = SHOWN[name]
    assert given.mode == mode
    for upright in (False, True):
        assert list(to_image(given, upright=upright).pixels.get_flattened_data()) == expected
    assert given.mode == mode  # unchanged


@pytest.mark.parametrize("mode", ["I", "F"])
def test_numbers_of_32_bits_are_refused(mode: str) -> None:
    with pytest.raises(OSError, match="32 bits"):
        to_image(PIL.Image.new(mode, (1, 1)))


@pytest.mark.parametrize(
    ("mode", "format"), [("L", "PNG"), ("LA", "PNG"), ("I;16", "PNG"), ("L", "WEBP"), ("L", "JPEG")]
)
def test_an_image_is_turned_upright_only_if_asked(mode: str, format: str) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # turn it clockwise
    image = saved(PIL.Image.new(mode, (4, 2)), format, exif=exif)
    assert to_image(image).pixels.size == (4, 2)
    assert to_image(image, upright=True).pixels.size == (2, 4)
