"""Thumbnails of the documents' images for the page. Images that are equal are stored once."""

import base64
import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.page.sample_data import effects, sample_runs

SIDE = 384
"""Length of the longer side of a thumbnail in pixels."""
BUDGET = 5_000_000
"""Bytes of all thumbnails, so that the page stays below 15 MB."""


@dataclass
class Images:
    """Thumbnails by document."""

    data: list[str] = field(default_factory=list)
    """WebP as base64."""
    of: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    """Benchmark -> number of the document -> the numbers of its thumbnails."""
    gaps: list[str] = field(default_factory=list)
    """A sentence for each thing that is missing."""
    size: int = 0
    """Bytes of all thumbnails."""
    _known: dict[bytes, int] = field(default_factory=dict)

    def add(self, benchmark: str, doc_id: int, images: Sequence[Image.Image]) -> bool:
        """Add the images of a document. Returns False, and adds nothing, if they do not fit into the budget."""
        digests = [_digest(image) for image in images]
        new = {
            digest: thumbnail(image) for digest, image in zip(digests, images, strict=True) if digest not in self._known
        }
        size = sum(map(len, new.values()))
        if self.size + size > BUDGET:
            return False
        self.size += size
        for digest, data in new.items():
            self._known[digest] = len(self.data)
            self.data.append(base64.b64encode(data).decode("ascii"))
        self.of.setdefault(benchmark, {})[doc_id] = [self._known[digest] for digest in digests]
        return True

    def packed(self) -> dict[str, Any]:
        """Return the data of the page's block."""
        return {"data": self.data, "of": self.of}


def thumbnail(image: Image.Image) -> bytes:
    """Return a small WebP of an image."""
    small = image.convert("RGB")
    small.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    small.save(file, "WEBP", quality=60)
    return file.getvalue()


def wanted(evidence: Evidence) -> Iterator[tuple[str, list[int]]]:
    """Yield each benchmark with its documents, those first that a reader opens first: harm and rescue, then the other
    transfers, then all others."""
    runs = sample_runs(evidence)
    for benchmark in dict.fromkeys(run.benchmark for run in runs):
        order: dict[int, None] = {}
        later: list[Iterable[int]] = []
        for run in (one for one in runs if one.benchmark == benchmark):
            if run.method.mode == "cascade":
                order |= dict.fromkeys(sorted(effects(evidence, run)))
                later.insert(0, [one.doc_id for one in run.documents if one.exit == "transfer"])
            later.append([one.doc_id for one in run.documents])
        for ids in later:
            order |= dict.fromkeys(ids)
        yield benchmark, list(order)


def _digest(image: Image.Image) -> bytes:
    key = hashlib.blake2b(image.tobytes(), digest_size=16)
    key.update(f"{image.size} {image.mode}".encode())
    return key.digest()
