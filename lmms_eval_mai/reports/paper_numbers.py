"""The paper's numbers: `paper_numbers.yaml`, and where to find one of them."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("paper_numbers.yaml")


@dataclass(frozen=True, slots=True)
class PaperNumber:
    """One number of the paper, and its place."""

    value: float
    source: str


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


def cell(number: int, row: str, benchmark: str, column: str) -> PaperNumber | None:
    """Return a cell of Table 5, 6, 7, 13 or 14, whose rows are models and whose columns are prompts. None: the paper
    does not have it."""
    found = table(number)
    values = found["rows"].get(row, {}).get(benchmark)
    if values is None or column not in found["columns"]:
        return None
    source = f"{found['source']}, {row}, {benchmark_name(benchmark)}, {column}"
    return PaperNumber(values[found["columns"].index(column)], source)


def transfer(row: str, benchmark: str) -> PaperNumber | None:
    """Return a score of Table 8. `row`: for example `8B-S` or `8B + 2B-R`."""
    found = table(8)
    if row not in found["rows"] or benchmark not in found["columns"]:
        return None
    value = found["rows"][row]["score"][found["columns"].index(benchmark)]
    return PaperNumber(value, f"{found['source']}, {row}, {benchmark_name(benchmark)}")


def transfer_gain(row: str, benchmark: str) -> PaperNumber | None:
    """Return a printed change of Table 8 relative to the large model's S, in percent. `row`: for example
    `8B + 2B-R`."""
    found = table(8)
    gains = found["rows"].get(row, {}).get("gain")
    if gains is None or benchmark not in found["columns"]:
        return None
    return PaperNumber(gains[found["columns"].index(benchmark)], f"{found['source']}, {row}, change")


def sparse(layer: str, column: str) -> PaperNumber | None:
    """Return a cell of Table 9. `layer`: L4 to L24, or Full. `column`: tokens or f1."""
    found = table(9)
    if layer not in found["columns"]:
        return None
    return PaperNumber(found[column][found["columns"].index(layer)], f"{found['source']}, {layer}, {column}")


def cascade(benchmark: str, column: str) -> PaperNumber | None:
    """Return a cell of Table 10: the share of an exit in percent, or the score of a method."""
    found = table(10)
    row = found["rows"].get(benchmark)
    if row is None or column not in found["columns"]:
        return None
    value = [*row["shares"], *row["scores"]][found["columns"].index(column)]
    return PaperNumber(value, f"{found['source']}, {benchmark_name(benchmark)}, {column}")


def sequential_time(row: str, benchmark: str) -> PaperNumber | None:
    """Return a cell of Table 11. `row`: Full RT or MAI (seconds), or speedup."""
    found = table(11)
    if benchmark not in found["columns"]:
        return None
    value = found["rows"][row][found["columns"].index(benchmark)]
    return PaperNumber(value, f"{found['source']}, {row}, {benchmark_name(benchmark)}")


def two_stage(benchmark: str, row: str, column: str) -> PaperNumber | None:
    """Return a cell of Table 15. `row`: 2B-R or 2B-R(S2). `column`: agree_think or transfer (a share), or MAI."""
    found = table(15)
    values = found["rows"].get(benchmark, {}).get(row)
    if values is None:
        return None
    value = [*values["shares"], values["score"]][found["columns"].index(column)]
    return PaperNumber(value, f"{found['source']}, {benchmark_name(benchmark)}, {row}, {column}")
