"""The tables of `lmms-eval-mai attention`: sparse transfer by layer with its controls (Table 9), and the heaviest
tokens of the thinking (Table 16)."""

import json
from collections.abc import Iterator
from itertools import groupby

from lmms_eval_mai.reports.attention_files import AttentionOutput, Record
from lmms_eval_mai.reports.report import Cell, Column, Estimate, Table


def attention_tables(output: AttentionOutput) -> Iterator[Table]:
    """Yield the tables of one task. Raises ValueError or LookupError if a line is broken."""
    if output.table9:
        yield _table_9(output)
    if output.table16:
        yield _table_16(output)


def _table_9(output: AttentionOutput) -> Table:
    return Table(
        key=f"table-9-attention-{output.task}",
        title=f"Table 9 with controls: sparse reasoning transfer on {output.task}, {output.large} + {output.small}",
        columns=(
            Column("method", "text"),
            Column("layer", "text"),
            Column("n", "count"),
            Column("kept tokens"),
            Column("prefilled tokens"),
            Column("score, %"),
            *(Column(f"p against {other}", "p") for other in ("full", "random", "last")),
        ),
        rows=tuple(_row_of_table_9(one) for one in output.table9),
        notes=(
            "simple: the large model without thinking. full: the whole thinking. random, last: as many tokens as the "
            "layer keeps, drawn at random or from the end. p: a paired exact test, corrected for the number of layers "
            "(Holm).",
        ),
    )


def _row_of_table_9(one: Record) -> tuple[Cell, ...]:
    number = int(one["documents"])
    tests = (one[f"against_{other}_p_holm"] for other in ("full", "random", "last"))
    return (
        one["method"],
        one["layer"],
        number,
        _estimate(one, "kept_tokens"),
        _estimate(one, "prefilled_tokens"),
        _estimate(one, "score", 100),
        *(float(p) if p else None for p in tests),
    )


def _table_16(output: AttentionOutput) -> Table:
    share = f"{output.delta:.0%}"
    return Table(
        key=f"table-16-{output.task}",
        title=f"Table 16: the heaviest tokens of the thinking on {output.task}, {output.large} + {output.small}",
        columns=(
            Column("thinking", "text"),
            Column("layer", "text"),
            Column("n", "count"),
            Column(f"tokens with {share}"),
            Column("share of tokens, %"),
            Column("heaviest tokens, % of the weight", "text"),
        ),
        rows=tuple(
            _row_of_table_16(list(lines))
            for _, lines in groupby(output.table16, key=lambda one: (one["thinking"], one["layer"]))
        ),
        notes=(
            f"The attention of the large model to the thinking of each model. {share} of it is on the tokens with the "
            "largest weights. The weight of a token is the mean over documents of its share. The paper has one "
            "document, so its numbers are not beside these.",
        ),
    )


def _row_of_table_16(lines: list[Record]) -> tuple[Cell, ...]:
    first = lines[0]
    tokens = (f"{json.dumps(one['token'], ensure_ascii=False)} {100 * float(one['weight_share']):.1f}" for one in lines)
    return (
        first["thinking"],
        first["layer"],
        int(first["documents"]),
        _estimate(first, "kept_tokens"),
        _estimate(first, "token_share", 100),
        ", ".join(tokens),
    )


def _estimate(one: Record, name: str, factor: float = 1) -> Estimate | None:
    """Return a number with its interval. None: it is not known."""
    value, low, high = (
        float(text) * factor if text else None for text in (one[name], one[f"{name}_low"], one[f"{name}_high"])
    )
    return None if value is None else Estimate(value, int(one["documents"]), low, high)
