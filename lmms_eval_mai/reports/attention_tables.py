"""Tables 9 and 16, from the file of `lmms-eval-mai attention`: sparse transfer by layer with its controls, and the
heaviest tokens of the thinking."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lmms_eval_mai.reports.methods import identity
from lmms_eval_mai.reports.report import Estimate, Of, Table, table

FILE, SETTINGS = "attention.parquet", "settings.json"

Record = dict[str, Any]
"""A row of the file: column -> value."""


def read(folders: Sequence[Path]) -> tuple[list[Table], list[str]]:
    """Return the tables in the folders and their subfolders, and a sentence for each output that is not used."""
    found: dict[str, Table] = {}
    gaps: list[str] = []
    files = {file.resolve(): file for folder in folders for file in sorted(folder.rglob(FILE))}
    for file in files.values():
        try:
            tables = list(_tables(file.parent))
        except (OSError, ValueError, LookupError, TypeError):
            gaps.append(f"{file.parent} is not used: a file of `lmms-eval-mai attention` in it is broken.")
            continue
        for one in tables:
            keys = [one.key, *(f"{one.key}-{number}" for number in range(2, len(found) + 2))]
            key = next(key for key in keys if key not in found)  # the same task with other models
            found[key] = replace(one, key=key)
    return list(found.values()), gaps


def _tables(folder: Path) -> Iterator[Table]:
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    task, share = str(settings["task"]), f"{float(settings['delta']):.0%}"
    large, small = (identity(str(settings["engines"][side]["model"])) for side in ("large", "small"))
    rows = pq.read_table(folder / FILE, filters=[("table", "in", ["table9", "table16"])]).to_pylist()
    table9: list[Of[Record]] = [
        Of("method", "text", 0, lambda row: row["method"]),
        Of("layer", "text", 0, lambda row: row["layer"] and str(row["layer"])),
        Of("n", "count", 0, lambda row: row["documents"]),
        Of("kept tokens", "number", 1, lambda row: _estimate(row, "kept_tokens")),
        Of("prefilled tokens", "number", 1, lambda row: _estimate(row, "prefilled_tokens")),
        Of("score, %", "percent", 1, lambda row: _estimate(row, "score", 100)),
        Of("p against full", "p", 0, lambda row: row.get("against_full_p_holm")),
        Of("p against random", "p", 0, lambda row: row.get("against_random_p_holm")),
        Of("p against last", "p", 0, lambda row: row.get("against_last_p_holm")),
    ]
    yield from table(
        f"table-9-attention-{task}",
        f"Table 9 with controls: sparse reasoning transfer on {task}, {large} + {small}",
        table9,
        [row for row in rows if row["table"] == "table9"],
        (
            "simple: the large model without thinking. full: the whole thinking. random, last: as many tokens as the "
            "layer keeps, drawn at random or from the end. p: a paired exact test, corrected for the number of layers "
            "(Holm).",
        ),
    )
    table16: list[Of[Record]] = [
        Of("thinking", "text", 0, lambda row: row["thinking"]),
        Of("layer", "text", 0, lambda row: str(row["layer"])),
        Of("n", "count", 0, lambda row: row["documents"]),
        Of(f"tokens with {share}", "number", 1, lambda row: _estimate(row, "kept_tokens")),
        Of("share of tokens, %", "number", 1, lambda row: _estimate(row, "token_share", 100)),
        Of("heaviest tokens, % of the weight", "text", 0, lambda row: row["tokens"]),
    ]
    yield from table(
        f"table-16-{task}",
        f"Table 16: the heaviest tokens of the thinking on {task}, {large} + {small}",
        table16,
        _by_layer([row for row in rows if row["table"] == "table16"]),
        (
            f"The attention of the large model to the thinking of each model. {share} of it is on the tokens with the "
            "largest weights. The weight of a token is the mean over documents of its share. The paper has one "
            "document, so its numbers are not beside these.",
        ),
    )


def _by_layer(rows: Sequence[Record]) -> list[Record]:
    """Return one row for each thinking and layer, with all of its tokens."""
    found = []
    for _, group in groupby(rows, key=lambda row: (row["thinking"], row["layer"])):
        of_layer = list(group)
        tokens = (f"{json.dumps(row['token'], ensure_ascii=False)} {100 * row['weight_share']:.1f}" for row in of_layer)
        found.append({**of_layer[0], "tokens": ", ".join(tokens)})
    return found


def _estimate(row: Record, name: str, factor: float = 1) -> Estimate | None:
    """Return a number with its interval. None: it is not known."""
    value, low, high = (
        None if row[column] is None else row[column] * factor for column in (name, f"{name}_low", f"{name}_high")
    )
    return None if value is None else Estimate(value, row["documents"], low, high)
