"""Thumbnails of the documents' images for the page. Images that are equal are stored once."""

import base64
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

from PIL import Image

from lmms_eval_mai.engines.images import to_rgb

SIDE = 384
"""Length of the longer side of a thumbnail in pixels."""
BUDGET = 5_000_000
"""Bytes of all thumbnails, so that the page stays below 15 MB."""


@dataclass
class Images:
    """Thumbnails by document."""

    numbers: dict[bytes, int] = field(default_factory=dict)
    """Digest of an image -> the number of its thumbnail."""
    data: list[str] = field(default_factory=list)
    """WebP as base64."""
    of: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    """Benchmark -> number of the document -> the numbers of its thumbnails."""
    gaps: list[str] = field(default_factory=list)
    """A sentence for each thing that is missing."""
    size: int = 0
    """Bytes of all thumbnails."""

    def add(self, benchmark: str, doc_id: int, images: Sequence[Image.Image]) -> bool:
        """Add the images of a document. Returns False, and adds nothing, if they do not fit into the budget."""
        by_digest = {_digest(image): image for image in images}
        new = {digest: thumbnail(image) for digest, image in by_digest.items() if digest not in self.numbers}
        size = sum(map(len, new.values()))
        if self.size + size > BUDGET:
            return False
        self.size += size
        for digest, data in new.items():
            self.numbers[digest] = len(self.data)
            self.data.append(base64.b64encode(data).decode("ascii"))
        self.of.setdefault(benchmark, {})[doc_id] = [self.numbers[_digest(image)] for image in images]
        return True


def thumbnail(image: Image.Image) -> bytes:
    """Return a small WebP of an image."""
    small = to_rgb(image)
    small.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    small.save(file, "WEBP", quality=60)
    return file.getvalue()


def _digest(image: Image.Image) -> bytes:
    return hashlib.blake2b(image.tobytes() + f"{image.size} {image.mode}".encode(), digest_size=16).digest()
