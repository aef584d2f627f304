"""Profiles as tables: Tables 1 to 4, batches, and the crossing of Figure 1 (a) for two models."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd

from lmms_eval_mai.reports.report import Cell, Kind, Of, Report, Table, table
from lmms_eval_mai.times.call_times import CallTimes
from lmms_eval_mai.times.profile import PAPER_NOTE, SIZES, Profile, Row, of_paper

TITLES = {
    "preprocessing": ("table-1", "Table 1: preprocessing of one image"),
    "vision": ("table-2", "Table 2: vision encoder on one image"),
    "ttft": ("table-3", "Table 3: time to first token"),
    "decoding": ("table-4", "Table 4: decoding"),
}
"""Kind of row -> key and title of its table."""
CROSSING_TOKENS = (1, 4, 8, 32, 128, 256, 512)
"""Output tokens of the large model in the table of Figure 1 (a)."""


def report(profiles: Sequence[Profile]) -> Report:
    """Return the tables of some profiles. If there are two, the second is the large model: Figure 1 (a) is added."""
    tables = [found for kind in TITLES for found in _cells(kind, profiles)]
    tables += [*_speeds(profiles), *_batches(profiles)]
    if len(profiles) == 2:
        tables += _crossing(*profiles)
    gaps = [sentence for one in profiles for sentence in _gaps(one)]
    return Report((), tuple(tables), (), (), tuple(gaps))


def _of(title: str, name: str, digits: int = 2, kind: Kind = "number", factor: float = 1) -> Of[Row]:
    """Return the column with one field of a row, times a factor. An unknown number (nan) is None."""

    def cell(row: Row) -> Cell:
        value: Any = row[name]
        if kind == "text":
            return str(value)
        return None if pd.isna(value) else int(value) if kind == "count" else factor * value

    return Of(title, kind, digits, cell)


def _size(name: str) -> Of[Row]:
    return _of("other tokens" if name == "text_tokens" else name.replace("_", " "), name, 0, "text")


def _cells(kind: str, profiles: Sequence[Profile]) -> Iterator[Table]:
    """Yield one of Tables 1 to 4, beside the paper's numbers of the same model."""
    sizes = list(SIZES[kind])
    rows: list[Row] = []
    for one in profiles:
        cells = one.of(kind).assign(model=one.name)
        printed = [paper.of(kind) for paper in of_paper() if paper.model == one.model] or [cells[:0]]
        cells = cells.merge(printed[0][[*sizes, "mean"]], "left", sizes, suffixes=("", "_paper"))
        rows += cells.assign(ratio=cells["seconds"] / cells["mean_paper"]).to_dict("records")
    ms = partial(_of, factor=1000)
    columns = (
        _of("model", "model", 0, "text"),
        *map(_size, sizes),
        ms("median, ms", "seconds"),
        *(ms(name, name) for name in ("mean", "deviation", "least", "greatest")),
        _of("n", "repeats", 0, "count"),
        ms("paper, ms", "mean_paper"),
        _of("median / paper", "ratio"),
    )
    notes = ("Times are in ms. Median / paper: beside the mean of the paper.",)
    yield from table(*TITLES[kind], columns, rows, notes)


def _speeds(profiles: Sequence[Profile]) -> Iterator[Table]:
    printed = {paper.model: paper.tokens_per_s() for paper in of_paper()}

    def ratio(one: Profile) -> Cell:
        return one.tokens_per_s() / printed[one.model] if one.model in printed else None

    columns: tuple[Of[Profile], ...] = (
        Of("model", "text", 0, lambda one: one.name),
        Of("engine", "text", 0, lambda one: one.engine),
        Of("dtype", "text", 0, lambda one: one.dtype),
        Of("device", "text", 0, lambda one: one.device),
        Of("tokens/s", "number", 2, Profile.tokens_per_s),
        Of("paper", "number", 2, lambda one: printed.get(one.model)),
        Of("here / paper", "number", 2, ratio),
        Of("between two tokens, ms", "number", 2, lambda one: 1000 * CallTimes(one).inter_token_s),
    )
    notes = (
        "Tokens/s: the mean of output tokens / seconds over the cells of Table 4, as in the paper. Between two tokens: "
        "without the time to the first token.",
    )
    yield from table("speeds", "Decoding speed", columns, profiles, notes)


def _batches(profiles: Sequence[Profile]) -> Iterator[Table]:
    """Yield the batches. A row has both rows of a cell: `first_s` is the time with one output token."""
    rows: list[Row] = []
    for one in profiles:
        first, whole = (one.of("batches").iloc[start::2].reset_index(drop=True) for start in (0, 1))
        later_s = (whole["seconds"] - first["seconds"]).where(lambda seconds: seconds > 0)
        whole = whole.assign(
            model=one.name,
            first_s=first["seconds"],
            prompt_speed=whole["batch_size"] * (whole["image_tokens"] + whole["text_tokens"]) / first["seconds"],
            output_speed=whole["batch_size"] * (whole["output_tokens"] - 1) / later_s,
            prefill=100 * first["seconds"] / whole["seconds"].clip(lower=first["seconds"]),
        )
        rows += whole.to_dict("records")
    columns = (
        _of("model", "model", 0, "text"),
        *map(_size, ("batch_size", "image_tokens", "text_tokens")),
        _of("output tokens", "output_tokens", 0, "count"),
        _of("first tokens, ms", "first_s", 1, factor=1000),
        _of("all tokens, ms", "seconds", 1, factor=1000),
        _of("n", "repeats", 0, "count"),
        _of("prompt tokens/s", "prompt_speed", 0),
        _of("output tokens/s", "output_speed", 0),
        _of("prefill, %", "prefill", 1),
    )
    notes = (
        "Medians. First tokens: all requests of the batch with one output token each, from the first request to the "
        "end of the last one. Prefill: its share of the time of all tokens. The paper has no batches.",
    )
    yield from table("batches", "Batches", columns, rows, notes)


def _crossing(small: Profile, large: Profile) -> Iterator[Table]:
    """Yield the crossing of Figure 1 (a): the output tokens beyond which the small model is slower than the large one
    with fewer tokens."""
    one, other = CallTimes(small), CallTimes(large)
    papers_small, _, papers_large = map(CallTimes, of_paper())
    first = large.of("decoding").iloc[0]
    prompt = int(first["image_tokens"] + first["text_tokens"])
    faster = "faster than the small model with more tokens than"
    columns: tuple[Of[int], ...] = (
        Of("output tokens of the large model", "text", 0, str),
        Of("its time, s", "number", 3, partial(_single_s, other, prompt)),
        Of(faster, "count", 0, partial(crossing, one, other, prompt)),
        Of("paper, 8B and 2B", "count", 0, partial(crossing, papers_small, papers_large, 320)),
    )
    notes = (
        f"Prompts of {prompt} tokens, in the paper's column 320. The times are those with one TTFT. Paper: the large "
        "model with 128 output tokens is faster than the small one with 256 (Section 3.2).",
        PAPER_NOTE,
    )
    title = "Figure 1 (a): where the large model is faster"
    yield from table("figure-1a", title, columns, CROSSING_TOKENS, notes)


def _single_s(times: CallTimes, prompt_tokens: int, output_tokens: int) -> float:
    return float(times.ttft_s(prompt_tokens)[0] + (output_tokens - 1) * times.later_token_s(prompt_tokens))


def crossing(small: CallTimes, large: CallTimes, prompt_tokens: int, output_tokens: int) -> int | None:
    """Return the most output tokens with which the small model is not slower than the large one with `output_tokens`.
    None: the small model decodes in no time."""
    left = _single_s(large, prompt_tokens, output_tokens) - _single_s(small, prompt_tokens, 1)
    later_token_s = float(small.later_token_s(prompt_tokens))
    if not later_token_s:
        return None
    return max(0, 1 + int(left / later_token_s + 1e-9)) if left >= 0 else 0


def _gaps(one: Profile) -> Iterator[str]:
    too_long = one.settings.get("too_long")
    if too_long:
        cells = ", ".join(f"{image} px with {text} tokens" for image, text in too_long)
        yield f"{one.name}: these prompts do not fit the context and were left out: {cells}."
    if one.settings.get("no_vision"):
        yield f"{one.name}: transformers cannot run its vision encoder alone ({one.settings['no_vision']})."
    if one.engine and one.of("batches").empty:
        yield f"{one.name}: batches are measured with --engine vllm only."
