"""The paper's numbers: `paper_numbers.csv` has the cells of Tables 5 to 11 and 13 to 15, and `paper_numbers.yaml` the
models, the benchmarks, and the tables of times and tokens."""

import csv
import functools
from pathlib import Path
from typing import Any

from lmms_eval_mai.user_input import read_yaml

FILE, CELLS = (Path(__file__).with_name(f"paper_numbers.{ending}") for ending in ("yaml", "csv"))


@functools.cache
def load() -> dict[str, Any]:
    content: dict[str, Any] = read_yaml(FILE.name, FILE)
    return content


def table(number: int) -> dict[str, Any]:
    """Return one table of the YAML file."""
    content: dict[str, Any] = load()["tables"][str(number)]
    return content


def family(model: str) -> tuple[str, str] | None:
    """Return the family and the paper's short name of a checkpoint. None: the paper does not have it."""
    names = load()["models"].get(model)
    return None if names is None else (names[0], names[1])


def benchmark_name(benchmark: str) -> str:
    """Return the paper's name of a benchmark, or the name itself if the paper does not have it."""
    return str(load()["benchmarks"].get(benchmark, {}).get("name", benchmark))


def documents(benchmark: str) -> int | None:
    """Return the paper's number of documents (Table 10)."""
    count: int | None = load()["benchmarks"].get(benchmark, {}).get("documents")
    return count


def number(table_number: int, method: str, benchmark: str, measure: str) -> float | None:
    """Return a number of Tables 5 to 11 and 13 to 15. None: the paper does not have it.

    `method`: as in reports, such as `8B-R(S2)`, `Full RT 8B + 2B-R` or `MAI 8B + 2B-R`; in Table 9 a layer. `measure`:
    `score`, `tokens`, `seconds`, `speedup`, or an exit, also its number of documents (`transfer, documents`); `gain` in
    Table 8, `f1` in Table 9, and `difference` in Table 15.
    """
    value = _cells().get((str(table_number), method, benchmark, measure))
    return None if value is None else float(value)


@functools.cache
def _cells() -> dict[tuple[str, ...], str]:
    """Table, method, benchmark, measure -> value."""
    with CELLS.open(newline="", encoding="utf-8") as file:
        return {tuple(names): value for *names, value in csv.reader(file)}
