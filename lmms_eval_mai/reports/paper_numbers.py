"""The paper's numbers: `paper_numbers.csv` has the cells of Tables 5 to 11 and 13 to 15, and `paper_numbers.yaml` the
models, the benchmarks, and the tables of times and tokens."""

import csv
import functools
from pathlib import Path
from typing import Any

import yaml

FILE, CELLS = (Path(__file__).with_name(f"paper_numbers.{kind}") for kind in ("yaml", "csv"))


@functools.cache
def load() -> dict[str, Any]:
    """Return the whole file."""
    found: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return found


def table(number: int) -> dict[str, Any]:
    """Return one table of the paper."""
    found: dict[str, Any] = load()["tables"][str(number)]
    return found


def family(model: str) -> tuple[str, str] | None:
    """Return the family and the paper's short name of a checkpoint. None: the paper does not have it."""
    found = load()["models"].get(model)
    return None if found is None else (found[0], found[1])


def benchmark_name(benchmark: str) -> str:
    """Return the paper's name of a benchmark, or the name itself if the paper does not have it."""
    return str(load()["benchmarks"].get(benchmark, {}).get("name", benchmark))


def documents(benchmark: str) -> int | None:
    """Return the paper's number of documents (Table 10)."""
    found: int | None = load()["benchmarks"].get(benchmark, {}).get("documents")
    return found


def number(table_number: int, row: str, benchmark: str, column: str) -> float | None:
    """Return a number of Tables 5 to 11 and 13 to 15. None: the paper does not have it.

    `row` and `column` are those of the file: a model and a prompt in Tables 5, 6, 7, 13 and 14; a pair, and `score` or
    `gain`, in Table 8; a layer, and `tokens` or `f1`, in Table 9; no row, and an exit or a method, in Table 10; a
    method and no column in Table 11; 2B-R or 2B-R(S2), and an exit or MAI, in Table 15.
    """
    value = _cells().get((str(table_number), row, benchmark, column))
    return None if value is None else float(value)


@functools.cache
def _cells() -> dict[tuple[str, ...], str]:
    """Return the file of single cells: table, row, benchmark, column -> value."""
    with CELLS.open(newline="", encoding="utf-8") as file:
        return {tuple(names): value for *names, value in csv.reader(file)}
