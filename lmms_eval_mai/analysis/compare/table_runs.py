"""The methods of the paper and the variants of a benchmark's task that the runs of each table need. To support a table,
add them here."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.method.benchmarks import benchmark_of
from lmms_eval_mai.method.methods import FULL_RT, LARGE_R, MAI, MAI_CONFIDENCE, METHODS, OWN_THINKING, Method
from lmms_eval_mai.method.prompts import VARIANTS


class MethodOnTask(NamedTuple):
    method: Method
    suffix: str
    """The suffix of the task's name: a key of `VARIANTS`."""


ALONE = {side: METHODS[side] for side in SIDES}
IN_ORDER = (
    *(MethodOnTask(method, suffix) for method in ALONE.values() for suffix in VARIANTS),
    MethodOnTask(FULL_RT, "s"),
    MethodOnTask(MAI, "s"),
    MethodOnTask(MAI, "r_s2"),
)
"""The order of the runs: single models first, so that their calls are made in runs of their own."""
WITH_THRESHOLD = (MAI_CONFIDENCE, OWN_THINKING)
"""Methods that the paper does not have, which run if there is a threshold for the pair; with tables, for Table 10."""
BASELINES = (*ALONE.values(), LARGE_R, FULL_RT, MAI)
"""The methods on a task of `--tasks`: small S, large S, large R, Full RT and MAI."""

TABLES = (5, 6, 7, 8, 10, 11, 13, 14, 15)
"""The tables whose runs can be made."""
DEFAULT = (5, 6, 7, 8, 10, 15)
PAPERS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "qwen": {"qwen3vl-2b-8b": DEFAULT, "qwen3vl-2b-4b": (5, 6, 7, 8), "qwen3vl-4b-8b": (5, 6, 7, 8)},
    "internvl": dict.fromkeys(("internvl3_5-1b-8b", "internvl3_5-2b-8b", "internvl3_5-4b-14b"), (13, 14)),
}
"""Models of `--paper` -> the tables for each pair. Two pairs may share a model, which runs alone once."""


def methods_on_tasks(tables: Collection[int], benchmark: str, more: Sequence[Method] = ()) -> list[MethodOnTask]:
    """Return what the runs of these tables are, in their order. `more`: methods that the paper does not have."""
    needed = {one for number in tables for one in _needed(number, benchmark)}
    return list(
        dict.fromkeys([one for one in IN_ORDER if one in needed] + [MethodOnTask(method, "s") for method in more])
    )


def _needed(number: int, benchmark: str) -> set[MethodOnTask]:
    small, large = ALONE["small"], ALONE["large"]
    full_rt, mai = MethodOnTask(FULL_RT, "s"), MethodOnTask(MAI, "s")
    thought = "r" if benchmark_of(benchmark).one_stage else "r_s2"
    if number == 8:
        return {full_rt, MethodOnTask(small, "r"), MethodOnTask(large, "s"), MethodOnTask(large, thought)}
    if number == 10:
        return {full_rt, mai, MethodOnTask(small, "s"), MethodOnTask(small, "r"), MethodOnTask(large, "s")}
    if number == 11:
        return {full_rt, mai}
    if number == 15:
        return {mai, MethodOnTask(MAI, "r_s2")}
    return {MethodOnTask(method, suffix) for method in ALONE.values() for suffix in _prompts(number, benchmark)}


def _prompts(number: int, benchmark: str) -> tuple[str, ...]:
    """Return the prompts of the tables about one model. Table 6 is about POPE, and Table 7 about the paper's other
    benchmarks; Table 14 is about all. A benchmark that is not in the paper has those of both."""
    if number == 6:
        return ("s", "e", "e_s2", "r", "r_s2") if benchmark in ("pope", "shapes") else ()
    if (number, benchmark) == (7, "pope"):
        return ()
    if number in (7, 14):
        return ("s", "e", "r") if benchmark_of(benchmark).one_stage else ("s", "e_s2", "r_s2")
    return ("s", "e", "r")
