"""How much work runs are: the output tokens of their calls, by the paper's Tables 5 and 13."""

from collections.abc import Iterator, Sequence
from typing import Any

from lmms_eval_mai.analysis import paper_numbers
from lmms_eval_mai.analysis.compare.plan import PlannedRun
from lmms_eval_mai.contract import PROMPTS
from lmms_eval_mai.method.methods import prompt_of
from lmms_eval_mai.method.prompts import VARIANTS

TABLES = {"Qwen3-VL": 5, "InternVL3.5": 13}
"""Family of models -> the table with its output tokens."""
OTHERS = {"small": ("Qwen3-VL", "2B"), "large": ("Qwen3-VL", "8B")}
"""The models of the paper that stand for all others."""


def in_words(runs: Sequence[PlannedRun], limit: int | None, shares_calls: bool) -> str:
    """Return the number of runs and, if the paper has all benchmarks, the most output tokens that they may have."""
    shown = f"{len(runs)} run{'s' * (len(runs) != 1)}"
    calls = [call for run in runs for call in _calls(run, limit)]
    if not calls or any(tokens is None for _, tokens in calls):
        return shown
    # A call that several runs share is made once.
    total = sum(dict(calls).values() if shares_calls else (tokens for _, tokens in calls))
    shared = " that share calls" * shares_calls
    return (
        f"{shown}{shared}, with at most {total / 1e6:,.1f} million output tokens, if texts are as long as the paper's"
    )


def _calls(run: PlannedRun, limit: int | None) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each call of a method on all documents: what it is, and its output tokens. None: the paper has none."""
    names = {f"{name}_{suffix}": (name, suffix) for name in paper_numbers.load()["benchmarks"] for suffix in VARIANTS}
    benchmark, suffix = names.get(run.task, ("", "s"))
    documents, (variant, two_stage) = paper_numbers.documents(benchmark), VARIANTS[suffix]
    number = min(documents or 0, limit or documents or 0)
    for ask in run.method.asks:
        prompt = PROMPTS[prompt_of(ask, variant, run.models.config.think)]
        model = getattr(run.models.config, ask.side).model
        family, size = paper_numbers.family(model) or OTHERS[ask.side]
        thinking = "E" if prompt.variant == "E" else "R"  # one's own thinking counts as R
        written = (thinking, *["S"] * two_stage) if prompt.thinks else ("S",)
        for stage, letter in enumerate(written):
            tokens = paper_numbers.number(TABLES[family], f"{size}-{letter}", benchmark, "tokens")
            yield (benchmark, model, letter, ask.of, stage), None if tokens is None else tokens * number
