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

GAINS = (
    ("small R above small S", "small R - small S", 3),
    ("large S above small R", "large S - small R", 3),
    ("large R above large S", "large R - large S", 5),
    ("Full RT above large S", "Full RT - large S", 4),
    ("Full RT against large R", "Full RT - large R", -2),
    ("MAI above large S", "MAI - large S", 3),
)
"""Claim, name of the difference, and goal: the least number of points."""

RATIOS = (
    ("MAI's wall time to large R's, one document at a time", "wall one at a time, MAI / large R", 0.4),
    ("the same, many at once", "wall, MAI / large R", 0.7),
    ("MAI's small-model tokens to Full RT's", "small tokens, MAI / Full RT", 0.5),
)
"""Claim, name of the ratio, and goal: the largest ratio."""

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
    rows = [_gain(figures, *gain) for gain in GAINS]
    mai = _gain(figures, "MAI against Full RT, lower end of the interval", "MAI - Full RT", -1)
    low = figures["gains"]["MAI - Full RT"][1]
    rows.insert(-1, [*mai[:4], _result(low >= -1)])
    share = figures["exits"]
    for exit, goal, reached in (
        ("agree_short", "at least 50%", share["agree_short"] >= 0.5),
        ("transfer", "at most 30%", share["transfer"] <= 0.3),
    ):
        rows.append([f"exits at `{exit}`", goal, f"{share[exit]:.1%}", "", _result(reached)])
    ratios, harm = figures["ratios"], figures["harm"]["MAI"]
    rows += [
        [claim, f"at most {most:.2f}", f"{ratios[name]:.2f}", "", _result(ratios[name] <= most)]
        for claim, name, most in RATIOS
    ]
    to_full_rt, same = ratios["wall, MAI / Full RT"], ratios["large tokens, Full RT / large S"]
    claim = "MAI's wall time to Full RT's, many at once"
    rows.insert(-1, [claim, "below 1", f"{to_full_rt:.2f}", "", _result(to_full_rt < 1)])
    rows.append(["large-model tokens, Full RT to large S", "about 1", f"{same:.2f}", "", _result(abs(same - 1) < 0.05)])
    rescued, broken = harm["rescued"], harm["broken"]
    claim = "transferred documents: rescued to harmed"
    rows.append([claim, "above 3", f"{rescued} to {broken}", "", _result(rescued > 3 * broken)])
    return rows


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


def _gain(figures: dict[str, Any], claim: str, name: str, least: float) -> Row:
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
