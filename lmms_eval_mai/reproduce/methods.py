"""The methods of the paper as modes of `mai_cascade` and variants of a benchmark's task, and those of each table."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.confidence import Verify
from lmms_eval_mai.paper.prompts import VARIANTS
from lmms_eval_mai.reports.paper_numbers import ONE_STAGE

OWN = ""
"""The suffix of another lmms-eval task, which has its own prompt."""


@dataclass(frozen=True)
class Method:
    """One method: a mode, and the prompt of the task."""

    mode: str
    suffix: str
    """The suffix of the task's name: a key of `VARIANTS`, or `OWN`."""
    verify: Verify = "agreement"
    """The first check of a cascade."""

    @property
    def title(self) -> str:
        """Return the name for people, such as "small, R(S2)" or "Full RT"."""
        if self.mode not in SIDES:
            name = {"transfer": "Full RT", "cascade": "MAI"}[self.mode]
            name += ", confidence" * (self.verify != "agreement")
            return f"{name}, R(S2)" if self.suffix == "r_s2" else name
        if self.suffix == OWN:
            return f"{self.mode}, own prompt"
        variant, two_stage = VARIANTS[self.suffix]
        return f"{self.mode}, {variant}{'(S2)' * two_stage}"


METHODS = (
    *(Method(side, suffix) for side in SIDES for suffix in (*VARIANTS, OWN)),
    *(Method(mode, suffix) for mode in ("transfer", "cascade") for suffix in ("s", OWN)),
    Method("cascade", "r_s2"),
    *(Method("cascade", suffix, "confidence") for suffix in ("s", OWN)),
)
"""All methods, in the order of their runs: single models first, so that their calls are made in runs of their own."""

TABLES = {
    5: ("table-5", "table-13", "tokens"),
    6: ("table-6", "scores"),
    7: ("table-7", "table-14", "scores"),
    8: ("table-8",),
    10: ("table-10", "methods", "mai-against-others"),
    15: ("table-15",),
}
"""Number of a table -> its keys in a report. Tables 13 and 14 are Tables 5 and 7 for InternVL3.5."""
SAME = {13: 5, 14: 7}
"""Tables for InternVL3.5 -> those for Qwen3-VL with the same methods."""
ELSEWHERE = {
    9: "experiments/attention makes it",
    11: "`lmms-eval-mai report` estimates it from the runs of Table 10",
    12: "it needs timed runs, and this command shares calls",
    16: "experiments/attention makes it",
}
"""Tables of the paper that this command does not make, and why."""


def read_tables(text: str | None) -> tuple[int, ...]:
    """Return the tables of `--tables 5,6`; None: all. Raises `ArgumentError`."""
    if text is None:
        return tuple(TABLES)
    found = []
    for part in text.split(","):
        number = int(part) if part.strip().isdecimal() else 0
        number = SAME.get(number, number)
        if number in ELSEWHERE:
            raise ArgumentError(f"--tables {text}: Table {number} is not made here: {ELSEWHERE[number]}.")
        if number not in TABLES:
            known = ", ".join(map(str, sorted([*TABLES, *SAME])))
            raise ArgumentError(f"--tables {text} is invalid: expected numbers from {known}, such as 8,10.")
        found.append(number)
    return tuple(dict.fromkeys(found))


def methods_of(tables: Collection[int], benchmark: str | None, with_confidence: bool = False) -> list[Method]:
    """Return the methods that these tables need, in the order of their runs. `benchmark`: a benchmark of our tasks;
    None: another lmms-eval task. `with_confidence`: with the cascade that the paper does not have."""
    needed = {method for number in tables for method in _needed(number, benchmark)}
    return [method for method in METHODS if method in needed and (with_confidence or method.verify == "agreement")]


def _needed(number: int, benchmark: str | None) -> set[Method]:
    if benchmark is None:
        alone = {Method(side, OWN) for side in SIDES}
        full_rt, cascade = Method("transfer", OWN), Method("cascade", OWN)
        confident = replace(cascade, verify="confidence")
        return {8: {*alone, full_rt}, 10: {*alone, full_rt, cascade, confident}, 15: {cascade}}.get(number, alone)
    small, large = SIDES
    full_rt, cascade = Method("transfer", "s"), Method("cascade", "s")
    thought = "r" if benchmark in ONE_STAGE else "r_s2"
    if number == 8:
        return {full_rt, Method(small, "r"), Method(large, "s"), Method(large, thought)}
    if number == 10:
        confident = replace(cascade, verify="confidence")
        return {full_rt, cascade, confident, Method(small, "s"), Method(small, "r"), Method(large, "s")}
    if number == 15:
        return {cascade, Method("cascade", "r_s2")}
    return {Method(side, suffix) for side in SIDES for suffix in _prompts(number, benchmark)}


def _prompts(number: int, benchmark: str) -> tuple[str, ...]:
    """Return the prompts of the tables about one model: Table 6 is about POPE, and Table 7 about the paper's other
    benchmarks. A benchmark that is not in the paper has those of both."""
    if number == 6:
        return ("s", "e", "e_s2", "r", "r_s2") if benchmark in ("pope", "shapes") else ()
    if number == 7:
        if benchmark == "pope":
            return ()
        return ("s", "e", "r") if benchmark in ONE_STAGE else ("s", "e_s2", "r_s2")
    return ("s", "e", "r")
