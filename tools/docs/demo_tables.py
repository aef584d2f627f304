"""The results of the demo pair, for README.md and docs/demo-pair.md.

docs/demo-pair.json has the last line of the output of `python benchmarks/demo.py --repeats 2`, with line breaks.
"""

import json
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "demo-pair.json"

KINDS = {
    "yes_no": "yes/no",
    "count": "counting",
    "compare": "comparison",
    "where": "row and column",
    "path": "path",
    "choice": "multiple choice",
}
"""Kind of question -> its name in the documentation."""

Row = list[str]


def load() -> dict[str, Any]:
    """Return the figures of the measurement."""
    figures: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return figures


def exits(figures: dict[str, Any]) -> dict[str, int]:
    """Return the number of documents at each exit."""
    return {exit: round(share * figures["samples"]) for exit, share in figures["exits"].items()}


def tokens(figures: dict[str, Any], method: str) -> dict[str, float]:
    """Return the output tokens per document of each model."""
    return {side: number / figures["samples"] for side, number in figures["tokens"][method].items()}


def print_short_table() -> None:
    """Print accuracy, output tokens and seconds of each method."""
    figures = load()
    documents = f"{figures['samples']:,} questions"
    _print_table(
        [
            "method",
            "accuracy %",
            "small model's tokens",
            "large model's tokens",
            f"s for {documents}",
            "ms per question, one at a time",
        ],
        [
            [f"**{method}**" if method == "MAI" else method, *_numbers(figures, method)]
            for method in figures["accuracy"]
        ],
    )
    machine = figures["machine"]
    print(
        f"\n`python benchmarks/demo.py --repeats {figures['repeats']}`, {machine['date']}, {machine['cores']} cores "
        f"({machine['cpu']}), no GPU, vLLM {machine['vllm']}, {documents}."
    )


def print_full_table() -> None:
    """Print accuracy, its 95% interval, output tokens and seconds of each method."""
    figures = load()
    header = ["method", "accuracy %", "95% interval", "small tokens", "large tokens", "wall s", "ms, one at a time"]
    rows = []
    for method, (low, high) in figures["intervals"].items():
        accuracy, *others = _numbers(figures, method)
        rows.append([method, accuracy, f"{low:.1f}-{high:.1f}", *others])
    _print_table(header, rows)


def print_goals() -> None:
    """Print each goal with the measured value, and whether it is reached."""
    print("| claim | goal | measured | 95% interval | result |\n|---|---:|---:|---|---|")
    _print_rows(goals(load()))


def goals(figures: dict[str, Any]) -> list[Row]:
    """Return the rows of the goals: claim, goal, measured value, its interval if it has one, and result."""
    share, ratios, harm = figures["exits"], figures["ratios"], figures["harm"]["MAI"]
    low = figures["gains"]["MAI - Full RT"][1]
    alone, at_once = ratios["wall one at a time, MAI / large R"], ratios["wall, MAI / large R"]
    to_full_rt = ratios["wall, MAI / Full RT"]
    small, large = ratios["small tokens, MAI / Full RT"], ratios["large tokens, Full RT / large S"]
    rescued, broken = harm["rescued"], harm["broken"]
    return [
        _gain(figures, "small R above small S", "small R - small S", 3),
        _gain(figures, "large S above small R", "large S - small R", 3),
        _gain(figures, "large R above large S", "large R - large S", 5),
        _gain(figures, "Full RT above large S", "Full RT - large S", 4),
        _gain(figures, "Full RT against large R", "Full RT - large R", -2),
        [
            *_gain(figures, "MAI against Full RT, lower end of the interval", "MAI - Full RT", -1)[:-1],
            _result(low >= -1),
        ],
        _gain(figures, "MAI above large S", "MAI - large S", 3),
        _goal("exits at `agree_short`", "at least 50%", f"{share['agree_short']:.1%}", share["agree_short"] >= 0.5),
        _goal("exits at `transfer`", "at most 30%", f"{share['transfer']:.1%}", share["transfer"] <= 0.3),
        _goal("MAI's wall time to large R's, one document at a time", "at most 0.40", f"{alone:.2f}", alone <= 0.4),
        _goal("the same, many at once", "at most 0.70", f"{at_once:.2f}", at_once <= 0.7),
        _goal("MAI's wall time to Full RT's, many at once", "below 1", f"{to_full_rt:.2f}", to_full_rt < 1),
        _goal("MAI's small-model tokens to Full RT's", "at most 0.50", f"{small:.2f}", small <= 0.5),
        _goal("large-model tokens, Full RT to large S", "about 1", f"{large:.2f}", abs(large - 1) < 0.05),
        _goal("transferred documents: rescued to harmed", "above 3", f"{rescued} to {broken}", rescued > 3 * broken),
    ]


def print_kinds() -> None:
    """Print the accuracy of each method by kind of question, and how often agreement is wrong."""
    figures = load()
    agreed, wrong = figures["agreement"]["agreed"], figures["agreement"]["wrong together"]
    rows = []
    for kind, name in KINDS.items():
        documents = figures["documents"][kind]
        shares = [f"{100 * right[kind] / documents:.1f}" for right in figures["by_kind"].values()]
        rows.append([name, str(documents), *shares, f"{wrong[kind]} of {agreed[kind]}"])
    _print_table(["kind", "documents", *figures["by_kind"], "agreed, wrong"], rows)


def _goal(claim: str, goal: str, measured: str, reached: bool) -> Row:
    return [claim, goal, measured, "", _result(reached)]


def _gain(figures: dict[str, Any], claim: str, name: str, least: float) -> Row:
    """Return the row of a difference that must have at least `least` points."""
    value, low, high = figures["gains"][name]
    return [claim, str(least), f"{value:+.1f}", f"{low:+.1f} to {high:+.1f}", _result(value >= least)]


def _result(reached: bool) -> str:
    return "reached" if reached else "**missed**"


def _numbers(figures: dict[str, Any], method: str) -> Row:
    per_document = tokens(figures, method)
    decimals = figures["accuracy"][method], *per_document.values(), figures["wall_s"][method]
    return [*(f"{number:.1f}" for number in decimals), f"{1000 * figures['alone_s'][method]:.0f}"]


def _print_table(header: Row, rows: list[Row]) -> None:
    print(f"| {' | '.join(header)} |\n|---|{'---:|' * (len(header) - 1)}")
    _print_rows(rows)


def _print_rows(rows: list[Row]) -> None:
    for row in rows:
        print(f"| {' | '.join(row)} |")
