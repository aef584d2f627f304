"""The cascade with other rules of agreement, recomputed from the tables of samples and calls.

A looser rule only ends a sample earlier, so its calls are known. A stricter rule needs calls that the cascade did not
make; they are those of Full RT on the same document, if its calls do not depend on the run: greedy decoding, and an
engine whose answers do not depend on the batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pandas as pd

from lmms_eval_mai.paper.agreement import AgreementRules
from lmms_eval_mai.paper.benchmarks import BENCHMARKS
from lmms_eval_mai.paper.sample import EXITS
from lmms_eval_mai.reports.evidence import Evidence, of_run, short_scores
from lmms_eval_mai.reports.read import Run
from lmms_eval_mai.reports.report import Estimate, Of, Table, table

SETTINGS: dict[str, tuple[AgreementRules, ...]] = {
    "infovqa_val": tuple(AgreementRules(anls_threshold=value / 100) for value in (50, 60, 70, 80, 85, 90, 95, 100)),
    "chartqa": (AgreementRules(chartqa_match="exact"), AgreementRules(chartqa_match="relaxed")),
}
"""Benchmark -> the rules to try."""
THINKING = ("think", "stage2")
TRANSFER = ("score", "transfer")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a cascade with another rule would have done."""

    run: Run
    rules: AgreementRules
    exits: dict[str, int]
    score: Estimate
    tokens: float
    """Output tokens of both models for one document."""

    @property
    def is_run(self) -> bool:
        """Whether these are the rules of the run itself."""
        return self.rules == self.run.rules

    @property
    def name(self) -> str:
        """The argument that sets the rule."""
        if self.run.benchmark == "chartqa":
            return f"chartqa_match={self.rules.chartqa_match}"
        return f"anls_threshold={self.rules.anls_threshold:g}"


def rules_table(evidence: Evidence) -> Iterator[Table]:
    """Yield score and cost of the cascade with looser and stricter rules of agreement."""
    columns: list[Of[Outcome]] = [
        *of_run(evidence, lambda row: row.run),
        Of("rule", "text", 0, lambda row: row.name),
        Of("of the run", "text", 0, lambda row: "yes" if row.is_run else None),
        *(Of(exit, "count", 0, partial(lambda exit, row: row.exits[exit], exit)) for exit in EXITS["cascade"]),
        Of("score", "percent", 2, lambda row: row.score),
        Of("output tokens", "number", 1, lambda row: row.tokens),
    ]
    return table(
        "rules",
        "The cascade with other rules of agreement, recomputed from the traces",
        columns,
        [outcome for _, outcomes in curves(evidence) for outcome in outcomes],
        (
            "Output tokens of both models for one document. A rule that is stricter than that of the run needs Full RT "
            "on the same documents, and is left out without it. Its calls are those of Full RT, which are the same "
            "only with greedy decoding and if answers do not depend on the batch (vLLM's may differ by a token in "
            "bfloat16).",
        ),
    )


def curves(evidence: Evidence) -> Iterator[tuple[Run, list[Outcome]]]:
    """Yield each cascade on a benchmark whose rule has a parameter, with what other rules would have done."""
    for run in evidence.traced():
        if run.benchmark in SETTINGS:
            # The thinking of Full RT has one stage, so it does not tell what a second stage would answer.
            full_rt = None if run.method.two_stage else evidence.full_rt(run)
            found = [recompute(evidence, run, rules, full_rt) for rules in SETTINGS[run.benchmark]]
            if any(found):
                yield run, list(filter(None, found))


def recompute(evidence: Evidence, run: Run, rules: AgreementRules, full_rt: Run | None) -> Outcome | None:
    """Return what the cascade would have done with these rules. None: calls are missing."""
    samples = run.samples.assign(large_score=short_scores(run, "large"))
    samples = samples[samples.repeat == 0]
    thought_tokens, transfer_tokens = (_tokens(run, stages, samples.index) for stages in (THINKING, TRANSFER))
    has_thought, has_transfer = samples.agree_think.notna(), samples.exit == "transfer"
    thoughts, scores = samples.thought, samples.score
    if full_rt is not None:
        other = full_rt.samples[full_rt.samples.repeat == 0].reindex(samples.index)
        known = other.exit.notna() & (other.target == samples.target)
        thoughts = thoughts.where(has_thought, other.thought.where(known, None))
        scores = scores.where(has_transfer, other.score)
        thought_tokens = thought_tokens.where(has_thought, _tokens(full_rt, ("think",), samples.index))
        transfer_tokens = transfer_tokens.where(has_transfer, _tokens(full_rt, TRANSFER, samples.index))
        has_thought, has_transfer = has_thought | known, has_transfer | known
    short = _agree(run.benchmark, samples.small, samples.large, rules)
    think = ~short & _agree(run.benchmark, thoughts, samples.large, rules)
    transfer = ~short & ~think
    if not (has_thought | short).all() or not (has_transfer | ~transfer).all():
        return None
    final = samples.large_score.where(~transfer, scores)
    tokens = _tokens(run, ("short",), samples.index)
    tokens = tokens + thought_tokens.where(~short, 0) + transfer_tokens.where(transfer, 0)
    exits: dict[str, int] = {
        exit: int(one.sum()) for exit, one in zip(EXITS["cascade"], (short, think, transfer), strict=True)
    }
    score = evidence.accuracy(run, pd.DataFrame({"score": final}))
    assert score is not None
    return Outcome(run, rules, exits, score, float(tokens.mean()))


def _agree(benchmark: str, small: pd.Series, large: pd.Series, rules: AgreementRules) -> pd.Series:
    """Return whether both answers parse and agree."""
    agree, pairs = BENCHMARKS[benchmark].agree, zip(small, large, strict=True)
    found = [isinstance(a, str) and isinstance(b, str) and agree(a, b, rules) for a, b in pairs]
    return pd.Series(found, index=small.index, dtype=bool)


def _tokens(run: Run, stages: tuple[str, ...], documents: pd.Index) -> pd.Series:
    calls = run.calls[run.calls.stage.isin(stages) & (run.calls.repeat == 0)]
    return calls.groupby("doc_id").output_tokens.sum().reindex(documents, fill_value=0)
