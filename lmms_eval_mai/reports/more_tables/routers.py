"""MAI against a router that chooses at random, at the same cost, and against the oracle."""

from collections.abc import Iterator

import numpy as np

from lmms_eval_mai import statistics
from lmms_eval_mai.reports.estimates import percent
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.more_tables.exits import large_short, traced
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.records import Method, Run
from lmms_eval_mai.reports.report import Cell, Column, Estimate, Table


def router_table(evidence: Evidence) -> Iterator[Table]:
    """Yield MAI against a router that chooses at random, at the same cost, and against the oracle."""
    rows = [row for run in traced(evidence) for row in _router_rows(evidence, run)]
    if rows:
        yield Table(
            key="routers",
            title="MAI against a random router of the same cost, and against the oracle",
            columns=(
                Column("benchmark", "text"),
                Column("method", "text"),
                Column("cheap", "text"),
                Column("expensive", "text"),
                Column("n", "count"),
                Column("tokens"),
                Column("random: expensive, %"),
                Column("MAI"),
                Column("random"),
                Column("MAI - random, points", digits=2),
                Column("oracle"),
                Column("oracle tokens"),
            ),
            rows=tuple(rows),
            notes=(
                "Mean scores in percent, on POPE and MMBench too. The random router takes the expensive method for a "
                "random share of the documents, so that it needs MAI's output tokens. The oracle knows the scores: it "
                "takes the expensive method only for documents on which that has a better score. If MAI needs fewer "
                "tokens than the cheap method or more than the expensive one, there is no random router of its cost.",
            ),
        )


def _router_rows(evidence: Evidence, run: Run) -> Iterator[tuple[Cell, ...]]:
    cheap = large_short(evidence, run)
    method = run.method
    large_r = Method("alone", method.model, "", method.variant, False, method.alone("large", "S").options)
    for expensive in (evidence.get(run.benchmark, method.full_rt()), evidence.get(run.benchmark, large_r)):
        if cheap is not None and expensive is not None and cheap is not expensive:
            row = _router_row(evidence, run, cheap, expensive)
            if row is not None:
                yield row


def _router_row(evidence: Evidence, run: Run, cheap: Run, expensive: Run) -> tuple[Cell, ...] | None:
    wanted = set.intersection(
        *({(one.doc_id, one.target) for one in each.documents} for each in (run, cheap, expensive))
    )
    mai, low, high = (
        [one for one in each.documents if (one.doc_id, one.target) in wanted] for each in (run, cheap, expensive)
    )
    known = all(None not in (one.output_tokens, one.score) for each in (mai, low, high) for one in each)
    if not mai or not known:
        return None
    scores = [np.array([one.score or 0.0 for one in each]) for each in (mai, low, high)]
    tokens = [np.array([one.output_tokens for one in each], dtype=float) for each in (mai, low, high)]
    cost_of_mai, cost_low, cost_high = (float(each.mean()) for each in tokens)
    share = (cost_of_mai - cost_low) / (cost_high - cost_low) if cost_high != cost_low else -1.0
    random: float | None = None
    difference: Estimate | None = None
    if 0 <= share <= 1:
        expected = (1 - share) * scores[1] + share * scores[2]
        random = 100 * float(expected.mean())
        found = statistics.bootstrap((scores[0] - expected)[:, None], statistics.column_mean(0))
        difference = percent(found)
    better = scores[2] > scores[1]
    return (
        benchmark_name(run.benchmark),
        evidence.name(run.method),
        evidence.name(cheap.method),
        evidence.name(expensive.method),
        len(mai),
        cost_of_mai,
        100 * share if 0 <= share <= 1 else None,
        100 * float(scores[0].mean()),
        random,
        difference,
        100 * float(np.maximum(scores[1], scores[2]).mean()),
        float(np.where(better, tokens[2], tokens[1]).mean()),
    )
