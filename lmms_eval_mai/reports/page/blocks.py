"""Compressed JSON for the page: gzip, then base64."""

import base64
import gzip
import json
from typing import Any


def pack(value: Any) -> str:
    """Return a value as compressed JSON. JSON's escapes keep texts that are not valid Unicode, such as half a character
    that a model wrote."""
    return pack_bytes(json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii"))


def pack_bytes(data: bytes) -> str:
    """Return compressed bytes as base64. Equal data give equal texts."""
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode("ascii")


def unpack(block: str) -> Any:
    """Return the value of a block."""
    return json.loads(gzip.decompress(base64.b64decode(block)))
