"""Tables 9 and 16, from the file of `lmms-eval-mai attention`: sparse transfer by layer with its controls, and the
heaviest tokens of the thinking."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lmms_eval_mai.reports.command import identity
from lmms_eval_mai.reports.report import Cell, Column, Estimate, Table

FILE, SETTINGS = "attention.parquet", "settings.json"
OLD_FILES = ("figure3.csv", "table9.csv", "corollary.csv")
"""Files of older versions, one for each part of the analysis."""

Record = dict[str, Any]
"""A row of the file: column -> value."""


def folders(folder: Path) -> list[Path]:
    """Return the output folders of tasks in a folder and its subfolders, those of older versions too."""
    files = [file for name in (FILE, *OLD_FILES) for file in folder.rglob(name)] if folder.is_dir() else []
    return sorted({file.parent for file in files if (file.parent / SETTINGS).is_file()})


def tables(folder: Path) -> list[Table]:
    """Return the tables of one task. Raises `ValueError` with a sentence for the report if they cannot be made."""
    if not (folder / FILE).is_file():
        raise ValueError(
            f"{folder} is not used: an older version of `lmms-eval-mai attention` wrote it. Run the command again."
        )
    try:
        return list(_tables(folder))
    except (OSError, ValueError, LookupError, TypeError):
        raise ValueError(f"{folder} is not used: a file of `lmms-eval-mai attention` in it is broken.") from None


def _tables(folder: Path) -> Iterator[Table]:
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    task, share = str(settings["task"]), f"{float(settings['delta']):.0%}"
    large, small = (identity(str(settings["engines"][side]["model"])) for side in ("large", "small"))
    rows = pq.read_table(folder / FILE, filters=[("table", "in", ["table9", "table16"])]).to_pylist()
    yield from _table(
        f"table-9-attention-{task}",
        f"Table 9 with controls: sparse reasoning transfer on {task}, {large} + {small}",
        {
            Column("method", "text"): lambda row: row["method"],
            Column("layer", "text"): lambda row: row["layer"] and str(row["layer"]),
            Column("n", "count"): lambda row: row["documents"],
            Column("kept tokens"): lambda row: _estimate(row, "kept_tokens"),
            Column("prefilled tokens"): lambda row: _estimate(row, "prefilled_tokens"),
            Column("score, %"): lambda row: _estimate(row, "score", 100),
            Column("p against full", "p"): lambda row: row.get("against_full_p_holm"),
            Column("p against random", "p"): lambda row: row.get("against_random_p_holm"),
            Column("p against last", "p"): lambda row: row.get("against_last_p_holm"),
        },
        [row for row in rows if row["table"] == "table9"],
        "simple: the large model without thinking. full: the whole thinking. random, last: as many tokens as the layer "
        "keeps, drawn at random or from the end. p: a paired exact test, corrected for the number of layers (Holm).",
    )
    yield from _table(
        f"table-16-{task}",
        f"Table 16: the heaviest tokens of the thinking on {task}, {large} + {small}",
        {
            Column("thinking", "text"): lambda row: row["thinking"],
            Column("layer", "text"): lambda row: str(row["layer"]),
            Column("n", "count"): lambda row: row["documents"],
            Column(f"tokens with {share}"): lambda row: _estimate(row, "kept_tokens"),
            Column("share of tokens, %"): lambda row: _estimate(row, "token_share", 100),
            Column("heaviest tokens, % of the weight", "text"): lambda row: row["tokens"],
        },
        _by_layer([row for row in rows if row["table"] == "table16"]),
        f"The attention of the large model to the thinking of each model. {share} of it is on the tokens with the "
        "largest weights. The weight of a token is the mean over documents of its share. The paper has one document, "
        "so its numbers are not beside these.",
    )


def _table(
    key: str, title: str, columns: Mapping[Column, Callable[[Record], Cell]], rows: Sequence[Record], note: str
) -> Iterator[Table]:
    """Yield the table, if the file has rows of it."""
    if rows:
        cells = tuple(tuple(cell(row) for cell in columns.values()) for row in rows)
        yield Table(key, title, tuple(columns), cells, (note,))


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
