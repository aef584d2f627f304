"""The paper's profiles: Tables 1 to 4, Qwen3-VL 2B, 4B and 8B on one H100."""

import functools
from typing import Any

from lmms_eval_mai.profiles.profile import DecodingPoint, ImagePoint, Profile, Seconds, TtftPoint
from lmms_eval_mai.reports import paper_numbers

DEVICE = "NVIDIA H100 (paper)"
FAMILY = "Qwen3-VL"


@functools.cache
def profiles() -> tuple[Profile, ...]:
    """Return the profiles of the paper. They have means only, and no batches."""
    models = {name: (family, short) for name, (family, short) in paper_numbers.load()["models"].items()}
    return tuple(_profile(model, short) for model, (family, short) in models.items() if family == FAMILY)


def _profile(model: str, name: str) -> Profile:
    third, fourth = paper_numbers.table(3), paper_numbers.table(4)
    return Profile(
        name=name,
        model=model,
        device=DEVICE,
        source="Tables 1 to 4 (Section 3.2)",
        settings={"repeats": 100},
        preprocessing=_images(1, name),
        vision=_images(2, name),
        ttft=tuple(
            TtftPoint(column["image"], column["image_tokens"], column["query_tokens"], _seconds(ms))
            for column, ms in zip(third["columns"], third["rows"][name], strict=True)
        ),
        decoding=tuple(
            _decoding(column, output_tokens, ms)
            for column, row in zip(fourth["columns"], fourth["rows"][name]["ms"], strict=True)
            for output_tokens, ms in zip(fourth["output_tokens"], row, strict=True)
        ),
    )


def _images(number: int, name: str) -> tuple[ImagePoint, ...]:
    """Return Table 1 or 2. Qwen3-VL has one token for 32 x 32 pixels."""
    table = paper_numbers.table(number)
    sides = [int(column.partition("x")[0]) for column in table["columns"]]
    return tuple(
        ImagePoint(side, (side // 32) ** 2, _seconds(ms)) for side, ms in zip(sides, table["rows"][name], strict=True)
    )


def _decoding(column: dict[str, Any], output_tokens: int, ms: float) -> DecodingPoint:
    text_tokens = column["tokens"] - column["image_tokens"]
    return DecodingPoint(column["image"], column["image_tokens"], text_tokens, output_tokens, _seconds(ms))


def _seconds(ms: float) -> Seconds:
    return Seconds(mean=ms / 1000, repeats=100)
