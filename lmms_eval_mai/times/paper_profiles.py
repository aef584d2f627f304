"""The paper's profiles: Tables 1 to 4, Qwen3-VL 2B, 4B and 8B on one H100. They have means only, and no batches."""

import functools
from collections.abc import Iterator

from lmms_eval_mai.reports import paper_numbers
from lmms_eval_mai.times.profile import Profile, Row, row, table

DEVICE = "NVIDIA H100 (paper)"
FAMILY = "Qwen3-VL"
REPEATS = 100


@functools.cache
def profiles() -> tuple[Profile, ...]:
    """Return the profiles of the paper."""
    models = {model: name for model, (family, name) in paper_numbers.load()["models"].items() if family == FAMILY}
    source, settings = "Tables 1 to 4 (Section 3.2)", {"repeats": REPEATS}
    return tuple(
        Profile(name, model, DEVICE, table(_rows(name)), source=source, settings=settings)
        for model, name in models.items()
    )


def _rows(name: str) -> Iterator[Row]:
    for number, kind in ((1, "preprocessing"), (2, "vision")):
        images = paper_numbers.table(number)
        for column, ms in zip(images["columns"], images["rows"][name], strict=True):
            side = int(column.partition("x")[0])  # Qwen3-VL has one token for 32 x 32 pixels
            yield row(kind, _seconds(ms), image=side, image_tokens=(side // 32) ** 2)
    third, fourth = paper_numbers.table(3), paper_numbers.table(4)
    for column, ms in zip(third["columns"], third["rows"][name], strict=True):
        image = {size: column[size] for size in ("image", "image_tokens")}
        yield row("ttft", _seconds(ms), **image, text_tokens=column["query_tokens"])
    for column, cells in zip(fourth["columns"], fourth["rows"][name]["ms"], strict=True):
        image = {size: column[size] for size in ("image", "image_tokens")}
        text_tokens = column["tokens"] - column["image_tokens"]
        for output_tokens, ms in zip(fourth["output_tokens"], cells, strict=True):
            yield row("decoding", _seconds(ms), **image, text_tokens=text_tokens, output_tokens=output_tokens)


def _seconds(ms: float) -> dict[str, float]:
    return {"mean": ms / 1000, "repeats": REPEATS}
