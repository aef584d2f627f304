"""The results of one task: `attention.parquet` with the rows of all tables and figures, beside `settings.json`.

The column `table` names the table of a row. A column that a table does not have is null in its rows.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lmms_eval_mai import statistics
from lmms_eval_mai.statistics import Interval

FILE, SETTINGS = "attention.parquet", "settings.json"

Record = dict[str, Any]
"""A row: column -> value."""


def start(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings. Rows that were measured with others are removed; only the number of documents may differ."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SETTINGS
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if {**known, "documents": None} != {**settings, "documents": None}:
        (folder / FILE).unlink(missing_ok=True)
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def write(folder: Path, tables: Mapping[str, Sequence[Record]]) -> None:
    """Write the rows of these tables. Those of other tables stay in the file."""
    records = [{"table": name, **record} for name, rows in tables.items() for record in rows]
    columns = dict.fromkeys(name for record in records for name in record)
    table = pa.table({name: [record.get(name) for record in records] for name in columns})
    if (folder / FILE).is_file():
        known = pq.read_table(folder / FILE)
        others = known.filter(pc.invert(pc.is_in(known["table"], pa.array(list(tables)))))
        table = pa.concat_tables([others, table], promote_options="permissive")
    replace(folder / FILE, table)


def replace(path: Path, table: Any) -> None:
    """Write a Parquet file. A crash leaves no half-written file under its name."""
    part = path.with_suffix(".part")
    pq.write_table(table, part)
    os.replace(part, path)


def fields(name: str, interval: Interval) -> Record:
    """Return a number and its interval as three columns. None: not known, or one document is not enough."""
    values = {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return {column: None if math.isnan(value) else value for column, value in values.items()}


def means(values: Mapping[str, Any]) -> Record:
    """Return the means over documents with their intervals. `values`: column -> one number per document."""
    intervals = {name: statistics.mean(np.asarray(numbers, dtype=float)) for name, numbers in values.items()}
    return {column: value for name, one in intervals.items() for column, value in fields(name, one).items()}
