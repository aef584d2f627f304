"""The order in which documents are opened: questions about one image next to each other.

POPE asks 9,000 questions about 500 images, in an order in which an engine whose cache holds fewer images reads each of
them several times. Images are told apart by a hash of their bytes in the data set, without decoding them.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import datasets
from loguru import logger

ROWS = 32
"""Documents whose images are in memory at the same time while they are hashed."""

Place = tuple[str, str, int]
"""Task, split and number of a document."""


def grouped_by_image(places: Sequence[Place], documents: Mapping[str, Any]) -> list[int]:
    """Return the indices of `places` so that documents with the same images follow the first of them. Documents of data
    sets that are streamed, or whose images cannot be told apart, keep their places. `documents`: the `task_dict` of the
    model."""
    images: dict[Place, str] = {}
    for task, split in dict.fromkeys(place[:2] for place in places):
        numbers = sorted({number for *of, number in places if of == [task, split]})
        try:
            images |= {(task, split, number): key for number, key in _image_keys(documents[task][split], numbers)}
        except Exception as error:  # the order has no effect on any answer
            logger.debug(f"mai_cascade: the images of {task} are not grouped: {type(error).__name__}: {error}")
    groups: dict[Any, list[int]] = {}
    for index, place in enumerate(places):
        groups.setdefault(images.get(place, index), []).append(index)
    return [index for group in groups.values() for index in group]


def _image_keys(dataset: Any, numbers: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Yield the number of each document that has images, and a hash of them."""
    if not isinstance(dataset, datasets.Dataset):
        return
    columns = [name for name, feature in dataset.features.items() if isinstance(feature, datasets.Image)]
    if not columns:
        return
    dataset = dataset.select_columns(columns)
    for name in columns:
        dataset = dataset.cast_column(name, datasets.Image(decode=False))
    for start in range(0, len(numbers), ROWS):
        rows = list(numbers[start : start + ROWS])
        values = dataset[rows]
        for number, *cells in zip(rows, *(values[name] for name in columns), strict=True):
            shown = [cell for cell in cells if cell is not None]
            if shown:
                yield number, _hash(shown)


def _hash(images: Sequence[Mapping[str, Any]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for image in images:
        digest.update(image["bytes"] or str(image["path"]).encode())
    return digest.hexdigest()
