"""The methods of the paper as modes of `mai_cascade` and variants of a benchmark's task, and those of each table."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.paper.confidence import Choices
from lmms_eval_mai.paper.prompts import VARIANTS
from lmms_eval_mai.reports.paper_numbers import ONE_STAGE


@dataclass(frozen=True)
class Method:
    """One method: a mode, and the prompt of the task."""

    mode: str
    suffix: str
    """The suffix of the task's name: a key of `VARIANTS`."""
    choices: Choices = Choices()  # noqa: RUF009 - frozen
    """Those of a cascade."""

    @property
    def folder(self) -> str:
        """Return the name of the folder for its runs."""
        mode = "own" if self.choices.thinker == "large" else self.mode
        return mode if self.choices.verify == "agreement" else f"{mode}-{self.choices.verify}"


METHODS = (
    *(Method(side, suffix) for side in SIDES for suffix in VARIANTS),
    Method("transfer", "s"),
    Method("cascade", "s"),
    Method("cascade", "r_s2"),
    *(Method("cascade", "s", Choices("confidence", thinker)) for thinker in SIDES),
)
"""All methods, in the order of their runs: single models first, so that their calls are made in runs of their own."""

TABLES = (5, 6, 7, 8, 10, 13, 14, 15)
"""The tables whose runs can be made."""
PAPER_BENCHMARKS = ("pope", "mmmu_val", "mmbench_en_dev", "chartqa", "infovqa_val", "realworldqa")
DEFAULT = (5, 6, 7, 8, 10, 15)
PAPERS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "qwen": {"qwen3vl-2b-8b": DEFAULT, "qwen3vl-2b-4b": (5, 6, 7, 8), "qwen3vl-4b-8b": (5, 6, 7, 8)},
    "internvl": dict.fromkeys(("internvl3_5-1b-8b", "internvl3_5-2b-8b", "internvl3_5-4b-14b"), (13, 14)),
}
"""Models of `--paper` -> the tables for each pair. Two pairs may share a model, which runs alone once."""


def methods_of(tables: Collection[int], benchmark: str, thinkers: Collection[Side] = ()) -> list[Method]:
    """Return the methods that these tables need, in the order of their runs. `thinkers`: those of the cascades with
    verify=confidence, which the paper does not have."""
    needed = {method for number in tables for method in _needed(number, benchmark)}
    return [
        method
        for method in METHODS
        if method in needed and (method.choices.verify == "agreement" or method.choices.thinker in thinkers)
    ]


def _needed(number: int, benchmark: str) -> set[Method]:
    small, large = SIDES
    full_rt, cascade = Method("transfer", "s"), Method("cascade", "s")
    thought = "r" if benchmark in ONE_STAGE else "r_s2"
    if number == 8:
        return {full_rt, Method(small, "r"), Method(large, "s"), Method(large, thought)}
    if number == 10:
        confident = {replace(cascade, choices=Choices("confidence", side)) for side in SIDES}
        return {full_rt, cascade, *confident, Method(small, "s"), Method(small, "r"), Method(large, "s")}
    if number == 15:
        return {cascade, Method("cascade", "r_s2")}
    return {Method(side, suffix) for side in SIDES for suffix in _prompts(number, benchmark)}


def _prompts(number: int, benchmark: str) -> tuple[str, ...]:
    """Return the prompts of the tables about one model. Table 6 is about POPE, and Table 7 about the paper's other
    benchmarks; Table 14 is about all. A benchmark that is not in the paper has those of both."""
    if number == 6:
        return ("s", "e", "e_s2", "r", "r_s2") if benchmark in ("pope", "shapes") else ()
    if (number, benchmark) == (7, "pope"):
        return ()
    if number in (7, 14):
        return ("s", "e", "r") if benchmark in ONE_STAGE else ("s", "e_s2", "r_s2")
    return ("s", "e", "r")
