"""Questions about one image are opened next to each other, and results keep their order."""

import io
from typing import Any

import datasets
import pytest
from PIL import Image

from lmms_eval_mai.harness.requests import grouped_by_image


def png(color: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), color).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def questions() -> Any:
    """Six questions about two images, one without an image, and one with bytes that nobody can decode."""
    images = [png("red"), png("blue"), png("red"), None, png("blue"), b"broken", png("red")]
    rows = [{"question": str(n), "image": None if data is None else {"bytes": data}} for n, data in enumerate(images)]
    features = datasets.Features({"question": datasets.Value("string"), "image": datasets.Image()})
    return datasets.Dataset.from_list(rows, features=features)


def test_documents_with_the_same_image_follow_the_first_of_them(questions: Any) -> None:
    places = [("a", "test", number) for number in range(7)] + [("b", "test", 1)]
    task_dict = {"a": {"test": questions}, "b": {"test": questions}}
    assert grouped_by_image(places, task_dict) == [0, 2, 6, 1, 4, 7, 3, 5]


def test_documents_that_are_streamed_or_have_no_images_keep_their_places(questions: Any) -> None:
    places = [("a", "test", number) for number in range(7)]
    for split in (questions.to_iterable_dataset(), questions.remove_columns("image"), [{"question": "?"}] * 7):
        assert grouped_by_image(places, {"a": {"test": split}}) == list(range(7))
