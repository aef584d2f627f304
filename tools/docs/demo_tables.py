"""The results of the demo pair, for README.md and docs/demo-pair.md, from docs/demo-pair.json."""

import json
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "demo-pair.json"

Row = list[str]


def print_short_table() -> None:
    """Print accuracy, output tokens and seconds of each method."""
    figures = _load()
    header = [
        "method",
        "accuracy %",
        "small model's tokens",
        "large model's tokens",
        f"s for {figures['documents']:,} questions",
        "ms per question, one at a time",
    ]
    _print_table(header, [[_label(method), *_numbers(method)] for method in figures["methods"]])
    print(f"\n{_source(figures)}")


def print_full_table() -> None:
    """Print accuracy, its 95% interval, output tokens and seconds of each method."""
    figures = _load()
    header = ["method", "accuracy %", "95% interval", "small tokens", "large tokens", "wall s", "ms, one at a time"]
    rows = []
    for method in figures["methods"]:
        accuracy, *others = _numbers(method)
        low, high = method["interval"]
        rows.append([method["name"], accuracy, f"{low:.1f}-{high:.1f}", *others])
    _print_table(header, rows)


def _load() -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return figures


def _source(figures: dict[str, Any]) -> str:
    return f"`{figures['command']}`, {figures['date']}, {figures['machine']}, {figures['documents']:,} questions."


def _label(method: dict[str, Any]) -> str:
    return f"**{method['name']}**" if method["name"] == "MAI" else str(method["name"])


def _numbers(method: dict[str, Any]) -> Row:
    decimals = ("accuracy", "small_tokens", "large_tokens", "wall_s")
    return [*(f"{method[name]:.1f}" for name in decimals), str(method["alone_ms"])]


def _print_table(header: Row, rows: list[Row]) -> None:
    print(f"| {' | '.join(header)} |\n|---|{'---:|' * (len(header) - 1)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
