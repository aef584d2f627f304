"""A small profile, and a short way to write others."""

from collections.abc import Iterable
from typing import Any

from lmms_eval_mai.times.profile import Profile, row, table

Point = tuple[Any, ...]


def rows_of(
    ttft: Iterable[Point] = (),
    decoding: Iterable[Point] = (),
    batches: Iterable[Point] = (),
    images: Iterable[Point] = (),
) -> Any:
    """Return the rows of a profile. ttft: image, image tokens, text tokens, seconds. decoding: the same with output
    tokens before the seconds. batches: the same with the batch size as the first number and the seconds of the first
    tokens before those of all. images: kind, image, image tokens, seconds or a summary."""
    names = ("image", "image_tokens", "text_tokens", "output_tokens")
    found = [row(kind, _seconds(last), **dict(zip(names, sizes, strict=False))) for kind, *sizes, last in images]
    found += [row("ttft", _seconds(last), **dict(zip(names, sizes, strict=False))) for *sizes, last in ttft]
    found += [row("decoding", _seconds(last), **dict(zip(names, sizes, strict=True))) for *sizes, last in decoding]
    for size, *point, first_s, all_s in batches:
        sizes = {"batch_size": size, **dict(zip(names, point, strict=True))}
        found += [row("batches", _seconds(first_s), **{**sizes, "output_tokens": 1})]
        found += [row("batches", _seconds(all_s), **sizes)]
    return table(found)


def _seconds(given: Any) -> dict[str, Any]:
    return given if isinstance(given, dict) else {"mean": given}


ONE = ((64, 4, 60, 0.01),), ((64, 4, 60, 8, 0.08),)
"""Table 3 and Table 4 with one cell each."""
SPREAD = {"mean": 0.002, "median": 0.002, "deviation": 0.0, "least": 0.002, "greatest": 0.002, "repeats": 3}
TINY = Profile(
    name="tiny",
    model="/models/tiny",
    device="A CPU (2 cores)",
    engine="vllm",
    dtype="float32",
    versions={"torch": "2.13"},
    settings={"repeats": 3},
    rows=rows_of(
        *ONE,
        batches=((8, 64, 4, 60, 16, 0.05, 0.35),),
        images=(("preprocessing", 64, 4, 0.001), ("vision", 64, 4, SPREAD)),
    ),
)
