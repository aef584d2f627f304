"""The rows of the table: each method, with the engines that it needs and how many documents it has open at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.errors import ArgumentError

Level = int | Literal["max"]
"""Documents that are open at once. `max`: as many as keep the engines busy."""
ONE = 1
BATCH = 32
"""The paper's batch size (Appendix B.4)."""

Kind = Literal["pair", "staged", "bound", "prototype", "whole"]
"""How a row runs. pair: on engines that stay up. staged: the same, stage by stage. bound: the same, all calls at once.
prototype: on new engines for each stage. whole: in a process of lmms-eval."""
PERSISTENT: tuple[Kind, ...] = ("pair", "staged", "bound")
"""The kinds with engines that stay up."""


@dataclass(frozen=True)
class Row:
    """One method."""

    title: str
    kind: Kind
    mode: str
    """A key of `MODES`. `whole`: the model of lmms-eval."""
    engines: tuple[str, ...] = ()
    """Names of `engines.NAMES`."""
    levels: tuple[Level, ...] | None = None
    """The only levels that it has. None: all."""
    reference: str = "large-r"
    """The row whose time is divided by that of this row."""
    needs_plan: bool = False


PAIR = ("small", "large")
ROWS: dict[str, Row] = {
    "large-r": Row("large R", "pair", "large", ("large alone",)),
    "small-r": Row("small R", "pair", "small", ("small alone",)),
    "full-rt": Row("Full RT", "pair", "transfer", PAIR),
    "mai": Row("MAI", "pair", "cascade", PAIR),
    "staged": Row("MAI, stage by stage", "staged", "cascade", PAIR, ("max",), needs_plan=True),
    "bound": Row("each engine gets its calls of MAI at once", "bound", "cascade", PAIR, ("max",), needs_plan=True),
    "prototype": Row("MAI, new engines for each stage", "prototype", "cascade", (), (BATCH,), needs_plan=True),
    "vllm-ngram": Row("large R, vLLM's n-gram speculation", "pair", "large", ("large ngram",)),
    "hf": Row("large R, transformers", "pair", "large", ("large transformers",), (ONE,), "hf"),
    "hf-speculative": Row(
        "large R, transformers, small model as assistant", "pair", "large", ("large assisted",), (ONE,), "hf"
    ),
    "lmms-eval-vllm": Row("lmms-eval --model vllm, large model", "whole", "vllm", (), ("max",), "lmms-eval-vllm"),
    "lmms-eval-mai": Row(
        "lmms-eval --model mai_cascade, mode=large", "whole", "mai_cascade", (), ("max",), "lmms-eval-vllm"
    ),
}


def chosen(names: str | None, forced: bool) -> list[str]:
    """Return the rows of `--rows`. `forced`: whether the lengths are forced. Raises `ArgumentError`."""
    given = list(ROWS) if names is None else [name.strip() for name in names.split(",")]
    for name in given:
        if name not in ROWS:
            hint = did_you_mean(name, ROWS)
            raise ArgumentError(f"--rows {name} is unknown: choose from {', '.join(ROWS)}.{hint}")
        if ROWS[name].needs_plan and not forced and names is not None:
            raise ArgumentError(f"--rows {name} needs forced lengths, as --lengths paper:chartqa. Leave the row out.")
    return [name for name in dict.fromkeys(given) if forced or not ROWS[name].needs_plan]


def levels(text: str) -> list[Level]:
    """Return the levels of `--concurrency`. Raises `ArgumentError`."""
    found: list[Level] = []
    for part in text.split(","):
        word = part.strip()
        if word != "max" and not (word.isdecimal() and int(word) > 0):
            raise ArgumentError(f"--concurrency {word} is invalid: expected numbers of at least 1, or max.")
        found.append("max" if word == "max" else int(word))
    return list(dict.fromkeys(found))


def cells(names: Sequence[str], wanted: Sequence[Level], as_given: bool = True) -> list[tuple[str, Level]]:
    """Return each row with each of its levels, level by level. `as_given`: whether the user gave the names; then a row
    without any of these levels raises `ArgumentError`. Otherwise it is left out."""
    for name in names if as_given else ():
        if (own := ROWS[name].levels) is not None and not set(own) & set(wanted):
            shown = " or ".join(map(str, own))
            raise ArgumentError(f"--rows {name} needs --concurrency {shown}: add it, or leave the row out.")
    return [(name, level) for level in wanted for name in names if level in (ROWS[name].levels or wanted)]
