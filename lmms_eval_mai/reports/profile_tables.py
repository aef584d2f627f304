"""Profiles as tables: Tables 1 to 4, batches, two models compared, and the crossing of Figure 1 (a)."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from lmms_eval_mai.profiles.profile import Profile, Seconds
from lmms_eval_mai.profiles.throughput import BatchTimes
from lmms_eval_mai.profiles.times import ProfileTimes
from lmms_eval_mai.reports import paper_profiles
from lmms_eval_mai.reports.report import Cell, Column, Report, Table

Cells = dict[tuple[int, ...], Seconds]
"""The sizes of a cell -> its time."""
CROSSING_TOKENS = (1, 4, 8, 32, 128, 256, 512)
"""Output tokens of the large model in the table of Figure 1 (a)."""
PAPERS_PAIR = ("2B", "8B")

TABLES: tuple[tuple[str, str, tuple[str, ...], Callable[[Profile], Cells]], ...] = (
    (
        "table-1",
        "Table 1: preprocessing of one image",
        ("image", "image tokens"),
        lambda one: {(p.image, p.image_tokens): p.seconds for p in one.preprocessing},
    ),
    (
        "table-2",
        "Table 2: vision encoder on one image",
        ("image", "image tokens"),
        lambda one: {(p.image, p.image_tokens): p.seconds for p in one.vision},
    ),
    (
        "table-3",
        "Table 3: time to first token",
        ("image", "image tokens", "other tokens"),
        lambda one: {(p.image, p.image_tokens, p.text_tokens): p.seconds for p in one.ttft},
    ),
    (
        "table-4",
        "Table 4: decoding",
        ("image", "image tokens", "other tokens", "output tokens"),
        lambda one: {(p.image, p.image_tokens, p.text_tokens, p.output_tokens): p.seconds for p in one.decoding},
    ),
)
"""Key, title, names of the sizes, and the cells of a profile."""


def report(profiles: Sequence[Profile]) -> Report:
    """Return the tables of some profiles. If there are two, the second is the large model, and they are compared."""
    tables = [_table(*table, profiles) for table in TABLES]
    tables.append(_speeds(profiles))
    if any(one.batches for one in profiles):
        tables.append(_batches(profiles))
    if len(profiles) == 2:
        tables += [_pair_table(*profiles), _crossing(*profiles)]
    gaps = [sentence for one in profiles for sentence in _gaps(one)]
    return Report((), tuple(table for table in tables if table.rows), (), (), tuple(gaps))


def _table(
    key: str, title: str, sizes: tuple[str, ...], cells: Callable[[Profile], Cells], profiles: Sequence[Profile]
) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for one in profiles:
        paper = _papers(one)
        printed = {} if paper is None else cells(paper)
        for size, seconds in cells(one).items():
            rows.append((one.name, *map(str, size), *_statistics(seconds), *_beside(seconds, printed.get(size))))
    columns = (Column("model", "text"), *(Column(name, "text") for name in sizes), *STATISTICS, *BESIDE)
    return Table(key, title, columns, tuple(rows), ("Times are in ms. Median / paper: beside the mean of the paper.",))


STATISTICS = (
    Column("median, ms", digits=2),
    Column("mean", digits=2),
    Column("deviation", digits=2),
    Column("least", digits=2),
    Column("greatest", digits=2),
    Column("n", "count"),
)
BESIDE = (Column("paper, ms", digits=2), Column("median / paper", digits=2))


def _statistics(one: Seconds) -> tuple[Cell, ...]:
    return (*map(_ms, (one.typical, one.mean, one.deviation, one.least, one.greatest)), one.repeats)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _beside(one: Seconds, paper: Seconds | None) -> tuple[Cell, ...]:
    return (None, None) if paper is None else (_ms(paper.mean), one.typical / paper.mean)


def _papers(one: Profile) -> Profile | None:
    """Return the paper's profile of the same model. None: the paper does not have it."""
    return next((paper for paper in paper_profiles.profiles() if paper.model == one.model), None)


def _papers_pair() -> list[Profile]:
    """Return the small and the large model of the paper's pair."""
    return [next(one for one in paper_profiles.profiles() if one.name == name) for name in PAPERS_PAIR]


def _speeds(profiles: Iterable[Profile]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for one in profiles:
        times, paper = ProfileTimes(one), _papers(one)
        printed = None if paper is None else paper.tokens_per_s()
        speed = (times.tokens_per_s, printed, times.tokens_per_s / printed if printed else None)
        rows.append((one.name, one.engine, one.dtype, one.device, *speed, 1000 * times.inter_token_s))
    columns = (
        *(Column(name, "text") for name in ("model", "engine", "dtype", "device")),
        Column("tokens/s", digits=2),
        Column("paper", digits=2),
        Column("here / paper", digits=2),
        Column("between two tokens, ms", digits=2),
    )
    notes = (
        "Tokens/s: the mean of output tokens / seconds over the cells of Table 4, as in the paper. Between two tokens: "
        "without the time to the first token.",
    )
    return Table("speeds", "Decoding speed", columns, tuple(rows), notes)


def _batches(profiles: Iterable[Profile]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for one in profiles:
        for p in one.batches:
            call = BatchTimes(one, p.batch_size).call(p.image_tokens + p.text_tokens, p.output_tokens)
            later = p.batch_size * (p.output_tokens - 1)
            rows.append(
                (
                    one.name,
                    str(p.batch_size),
                    str(p.image_tokens),
                    str(p.text_tokens),
                    p.output_tokens,
                    _ms(p.first_token.typical),
                    _ms(p.seconds.typical),
                    p.seconds.repeats,
                    p.batch_size * (p.image_tokens + p.text_tokens) / p.first_token.typical,
                    later / (p.seconds.typical - p.first_token.typical) if call.decoding_s else None,
                    100 * call.prefill_s / call.total_s,
                )
            )
    columns = (
        *(Column(name, "text") for name in ("model", "batch size", "image tokens", "other tokens")),
        Column("output tokens", "count"),
        Column("first tokens, ms", digits=1),
        Column("all tokens, ms", digits=1),
        Column("n", "count"),
        Column("prompt tokens/s", digits=0),
        Column("output tokens/s", digits=0),
        Column("prefill, %"),
    )
    notes = (
        "Medians. First tokens: all requests of the batch with one output token each, from the first request to the "
        "end of the last one. Prefill: its share of the time of all tokens. The paper has no batches.",
    )
    return Table("batches", "Batches", columns, tuple(rows), notes)


def _pair_table(small: Profile, large: Profile) -> Table:
    """Return how many times longer the large model takes, cell by cell, beside the paper's 8B and 2B."""
    rows: list[tuple[Cell, ...]] = []
    pair = _papers_pair()
    for _, title, _, cells in TABLES:
        one, other = cells(small), cells(large)
        printed = [_by_size(cells(paper)) for paper in pair]
        for size, seconds in other.items():
            if size in one:
                key = _without_image_tokens(size)
                paper = printed[1][key].mean / printed[0][key].mean if key in printed[0] else None
                rows.append((title, _size_text(size), seconds.typical / one[size].typical, paper))
    columns = (
        Column("table", "text"),
        Column("cell", "text"),
        Column(f"{large.name} / {small.name}", digits=2),
        Column("paper, 8B / 2B", digits=2),
    )
    return Table("large-by-small", "The large model beside the small one", columns, tuple(rows))


def _by_size(cells: Cells) -> Cells:
    return {_without_image_tokens(size): seconds for size, seconds in cells.items()}


def _without_image_tokens(size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes that were asked for. Models have different numbers of tokens for the same image."""
    return size[0], *size[2:]


def _size_text(size: tuple[int, ...]) -> str:
    names = ("{0} x {0} px", "{0} image tokens", "{0} other tokens", "{0} output tokens")
    return ", ".join(name.format(value) for name, value in zip(names, size, strict=False))


def _crossing(small: Profile, large: Profile) -> Table:
    """Return the crossing of Figure 1 (a): the output tokens beyond which the small model is slower than the large one
    with fewer tokens."""
    one, other = ProfileTimes(small), ProfileTimes(large)
    papers_small, papers_large = (ProfileTimes(profile) for profile in _papers_pair())
    first = large.decoding[0]
    prompt = first.image_tokens + first.text_tokens
    rows: list[tuple[Cell, ...]] = [
        (str(tokens), other.call(prompt, tokens).corrected_s, crossing(one, other, prompt, tokens),
         crossing(papers_small, papers_large, 320, tokens))
        for tokens in CROSSING_TOKENS
    ]  # fmt: skip
    columns = (
        Column("output tokens of the large model", "text"),
        Column("its time, s", digits=3),
        Column("faster than the small model with more tokens than", "count"),
        Column("paper, 8B and 2B", "count"),
    )
    notes = (
        f"Prompts of {prompt} tokens, in the paper's column 320. The times are those with one TTFT. Paper: the large "
        "model with 128 output tokens is faster than the small one with 256 (Section 3.2).",
    )
    return Table("figure-1a", "Figure 1 (a): where the large model is faster", columns, tuple(rows), notes)


def crossing(small: ProfileTimes, large: ProfileTimes, prompt_tokens: int, output_tokens: int) -> int | None:
    """Return the most output tokens with which the small model is not slower than the large one with `output_tokens`.
    None: the small model decodes in no time."""
    left = large.call(prompt_tokens, output_tokens).corrected_s - small.ttft_s(prompt_tokens)
    later_token_s = small.later_token_s(prompt_tokens)
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
    if one.engine and not one.batches:
        yield f"{one.name}: batches are measured with --engine vllm only."
