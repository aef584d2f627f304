"""What a report says first about a cascade."""

import re
from pathlib import Path

import pytest
from support.folders import Answers, World
from support.tables import row_of

from lmms_eval_mai.reports.build import of_evidence
from lmms_eval_mai.reports.claims import claims, ratio
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.read import read

CHEAP = Answers("circle", "circle", "circle", "circle", "circle", "circle")
"""Both short answers agree: 8 output tokens."""
DEAR = Answers("square", "circle", "square", "circle", "circle", "square")
"""A transfer: 113 output tokens, and the result is wrong."""
SHAPES = World("shapes", [CHEAP, CHEAP, CHEAP, DEAR])


def evidence_of(folder: Path) -> Evidence:
    return Evidence(read([folder]).runs)


def test_the_large_model_alone_comes_first_then_full_rt(tmp_path: Path) -> None:
    SHAPES.write(tmp_path, "cascade")
    SHAPES.write(tmp_path, "transfer", time="20260101_000001")
    SHAPES.write(tmp_path, "large", "r", time="20260101_000002")
    evidence = evidence_of(tmp_path)
    (claim,) = claims(evidence)
    report = of_evidence(evidence)
    table = report.table("mai-against-others")

    def difference(other: str) -> str:
        found = row_of(table, "shapes", "MAI 8B + 2B-R", other)["difference, points"]
        return str(found.shown(1, "+", " points"))

    score = row_of(report.table("methods"), "shapes", "MAI 8B + 2B-R")["score"]
    assert claim.sentence == (
        f"On shapes (n = 4), MAI 8B + 2B-R scores {score.shown()} with 34.2 output tokens of both models per question."
    )
    assert claim.more == (
        f"Against 8B-S: {difference('8B-S')}, with 8.6 times the output tokens. "
        f"Against 8B-R: {difference('8B-R')}, with 66% fewer output tokens. "
        f"Against Full RT 8B + 2B-R: {difference('Full RT 8B + 2B-R')}, with 67% fewer output tokens. "
        "In brackets: 95% intervals."
    )
    assert report.claims == (f"{claim.sentence} {claim.more}",)


def test_tokens_are_compared_on_the_documents_that_both_runs_have(tmp_path: Path) -> None:
    """Full RT has only the document on which the cascade is dear: there, it saves nothing."""
    SHAPES.write(tmp_path, "cascade")
    full_rt = SHAPES.write(tmp_path, "transfer", time="20260101_000001")
    samples = full_rt.with_name(f"{full_rt.name.removesuffix('_results.json')}_samples_shapes_s.jsonl")
    samples.write_text(samples.read_text().splitlines(keepends=True)[3])
    (claim,) = claims(evidence_of(tmp_path))
    assert "34.2 output tokens" in claim.sentence and "% fewer" not in claim.more
    assert claim.more.startswith("Against 8B-S: ")
    assert "Against Full RT 8B + 2B-R (n = 1): " in claim.more and "with 8% more output tokens." in claim.more


def test_a_method_without_token_counts_has_its_score_compared(tmp_path: Path) -> None:
    SHAPES.write(tmp_path, "cascade", "r")
    SHAPES.write(tmp_path, "large", "r", time="20260101_000001")
    samples = next(tmp_path.glob("20260101_000001_samples_*"))
    samples.write_text(samples.read_text().replace('"token_counts": [', '"token_counts": [null], "no_counts": ['))
    (claim,) = claims(evidence_of(tmp_path))
    assert re.search(r"Against 8B-R: .* points \([^)]+\)\. In brackets", claim.more)


@pytest.mark.parametrize(
    ("tokens", "others", "text"),
    [
        (14, 100, "86% fewer output tokens"),
        (150, 100, "50% more output tokens"),
        (100, 100.2, "as many output tokens"),
        (410, 100, "4.1 times the output tokens"),
        (5, 0, "more output tokens"),
    ],
)
def test_output_tokens_are_compared_in_words(tokens: float, others: float, text: str) -> None:
    assert ratio(tokens, others) == text
