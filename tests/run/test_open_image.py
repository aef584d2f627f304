"""Opening the images of own questions."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image

from lmms_eval_mai.run.ask import open_image


def test_many_questions_about_one_image_that_is_not_decoded_yet_all_get_its_pixels(tmp_path: Path) -> None:
    Image.effect_noise((1200, 1200), 50).save(tmp_path / "noise.png")
    expected = open_image(tmp_path / "noise.png").uuid
    for _ in range(3):
        image = Image.open(tmp_path / "noise.png")
        with ThreadPoolExecutor(6) as threads:
            found = list(threads.map(lambda _, image=image: open_image(image).uuid, range(6)))  # type: ignore[misc]
        assert found == [expected] * 6


def test_image_is_turned_upright_by_its_exif_data(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    Image.new("RGB", (40, 20)).save(tmp_path / "photo.jpg", exif=exif)
    assert open_image(tmp_path / "photo.jpg").pixels.size == (20, 40)
