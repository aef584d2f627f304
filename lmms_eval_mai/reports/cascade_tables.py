"""What happens inside a cascade: accuracy by exit, the precision of agreement, harm and rescue, and the kinds of
questions."""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from lmms_eval_mai import statistics
from lmms_eval_mai.paper.sample import EXITS
from lmms_eval_mai.reports import metrics
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.metrics import Clusters, Comparison
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.read import Run
from lmms_eval_mai.reports.report import Estimate, Of, Table, table

RIGHT = 0.5
"""A score counts as right from here on. ANLS is the only score between 0 and 1."""
ALL = "all kinds"


@dataclass(frozen=True)
class Part:
    """A part of the answers of a cascade."""

    run: Run
    name: str
    samples: pd.DataFrame


def exit_table(evidence: Evidence) -> Iterator[Table]:
    """Yield the accuracy of MAI by exit, beside that of other methods on the same documents."""
    rows = [
        Part(run, exit, run.samples[run.samples.exit == exit]) for run in evidence.traced() for exit in EXITS["cascade"]
    ]
    columns: list[Of[Part]] = [
        Of("benchmark", "text", 0, lambda row: benchmark_name(row.run.benchmark)),
        Of("method", "text", 0, lambda row: evidence.name(row.run.method)),
        Of("exit", "text", 0, lambda row: row.name),
        Of("n", "count", 0, lambda row: len(row.samples)),
        Of("share, %", "percent", 1, lambda row: _share_of_exit(evidence, row)),
        Of("MAI", "percent", 1, lambda row: metrics.accuracy(row.samples, evidence.clusters(row.run))),
        Of("small S", "percent", 1, lambda row: _beside(evidence, row, evidence.short(row.run, "small"))),
        Of("large S", "percent", 1, lambda row: _beside(evidence, row, evidence.short(row.run, "large"))),
        Of("Full RT", "percent", 1, lambda row: _beside(evidence, row, evidence.full_rt(row.run))),
    ]
    notes = "Mean score of the documents in percent, on POPE and MMBench too. The documents are those of MAI."
    return table("accuracy-by-exit", "Accuracy by exit", columns, rows, (notes,))


def _share_of_exit(evidence: Evidence, row: Part) -> Estimate | None:
    return metrics.share(row.run.samples.exit == row.name, evidence.clusters(row.run))


def _beside(evidence: Evidence, row: Part, other: Run | None) -> Estimate | None:
    """Return the accuracy of another run on the same documents."""
    if other is None:
        return None
    _, samples = evidence.common(row.run, other)
    return metrics.accuracy(samples[samples.index.isin(row.samples.index)], evidence.clusters(row.run))


# --- agreement ---


@dataclass(frozen=True)
class Checked:
    """The answers that one verification compared: whether the models agree, and whether the large model's short answer
    is right."""

    run: Run
    verification: str
    kind: str
    agree: pd.Series
    right: pd.Series
    """1 or 0; nan if it is not known."""
    clusters: Clusters | None

    def share(self, found: pd.Series) -> Estimate | None:
        """Return the share of true values in percent. None if one of them is not known."""
        return None if found.isna().any() else metrics.share(found, self.clusters)

    def errors(self, found: pd.Series) -> pd.Series | None:
        """Return the values of the answers that are wrong. None if it is not known which are."""
        return None if self.right.isna().any() else found[self.right == 0]


def agreement_table(evidence: Evidence) -> Iterator[Table]:
    """Yield how often an agreement is right, and how many errors it lets through."""
    columns: list[Of[Checked]] = [
        Of("benchmark", "text", 0, lambda row: benchmark_name(row.run.benchmark)),
        Of("method", "text", 0, lambda row: evidence.name(row.run.method)),
        Of("verification", "text", 0, lambda row: row.verification),
        Of("kind", "text", 0, lambda row: row.kind),
        Of("compared", "count", 0, lambda row: len(row.agree)),
        Of("agree, %", "percent", 1, lambda row: row.share(row.agree)),
        Of("right if they agree, %", "percent", 1, lambda row: row.share(row.right[row.agree])),
        Of("large S right, %", "percent", 1, lambda row: row.share(row.right)),
        Of("right answers accepted, %", "percent", 1, lambda row: row.share(row.agree[row.right == 1])),
        Of("errors of large S", "count", 0, lambda row: None if (one := row.errors(row.agree)) is None else len(one)),
        Of(
            "errors accepted",
            "count",
            0,
            lambda row: None if (one := row.errors(row.agree)) is None else int(one.sum()),
        ),
        Of(
            "errors accepted, %",
            "percent",
            1,
            lambda row: None if (e := row.errors(row.agree)) is None else row.share(e),
        ),
    ]
    return table(
        "agreement",
        "Agreement: precision, recall and base rate",
        columns,
        [row for run in evidence.traced() for row in _checked(evidence, run)],
        (
            "short: both short answers. think: the small model's thought answer and the large model's short one. "
            "Right: a score of at least 0.5.",
            "Right if they agree is the precision of agreement, and right answers accepted its recall. Compare the "
            "precision with the base rate: large S right, with the same answers and without any check. Errors "
            "accepted: wrong short answers of the large model with which the small model agrees.",
        ),
    )


def _checked(evidence: Evidence, run: Run) -> Iterator[Checked]:
    scores = evidence.large_short_scores(run)
    right = (scores >= RIGHT).astype(float).where(scores.notna())
    for verification, column in (("short", "agree"), ("think", "agree_think")):
        compared = run.samples[column].notna()
        kinds = run.samples.kind[compared]
        wanted = [ALL, *sorted(kinds.unique())] if kinds.nunique() > 1 else [ALL][: kinds.nunique()]
        for kind in wanted:
            chosen = compared & ((run.samples.kind == kind) | (kind == ALL))
            agree = run.samples[column][chosen].astype(bool)
            yield Checked(run, verification, kind, agree, right[chosen], evidence.clusters(run))


# --- harm and rescue ---


@dataclass(frozen=True)
class Changed:
    """What the transfer changed against the large model's short answer."""

    run: Run
    after: pd.Series
    """Whether the final answers of the transferred documents are right."""
    before: pd.Series
    """Whether the large model's short answers are right."""
    p: float
    lost_by_agreement: int | None
    """Answers that agreement accepted, that are wrong, and that Full RT has right. None: there is no Full RT."""
    clusters: Clusters | None


def harm_table(evidence: Evidence) -> Iterator[Table]:
    """Yield how many documents the transfer wins and loses against the large model's short answer."""
    rows = [row for run in evidence.traced() if (row := _changed_by_cascade(evidence, run)) is not None]
    rows += [row for run in evidence.of("transfer") if (row := _changed_by_full_rt(evidence, run)) is not None]
    columns: list[Of[Changed]] = [
        Of("benchmark", "text", 0, lambda row: benchmark_name(row.run.benchmark)),
        Of("method", "text", 0, lambda row: evidence.name(row.run.method)),
        Of("transferred", "count", 0, lambda row: len(row.after)),
        Of("large S right", "count", 0, lambda row: int(row.before.sum())),
        Of("of these lost", "count", 0, lambda row: int((row.before & ~row.after).sum())),
        Of("harm, %", "percent", 1, lambda row: metrics.share(~row.after[row.before], row.clusters)),
        Of("large S wrong", "count", 0, lambda row: int((~row.before).sum())),
        Of("of these won", "count", 0, lambda row: int((row.after & ~row.before).sum())),
        Of("rescue, %", "percent", 1, lambda row: metrics.share(row.after[~row.before], row.clusters)),
        Of("net", "count", 0, lambda row: int(row.after.sum()) - int(row.before.sum())),
        Of("p", "p", 0, lambda row: row.p),
        Of("lost by agreement", "count", 0, lambda row: row.lost_by_agreement),
    ]
    return table(
        "harm-and-rescue",
        "Harm and rescue: what the transfer changes against the large model's short answer",
        columns,
        rows,
        (
            "MAI transfers only documents on which the models disagree, and the short answer is its own; Full RT "
            "transfers all. Right: a score of at least 0.5. p is of lost against won (McNemar's exact test if each "
            "document counts by itself). Lost by agreement: wrong answers that both models gave, so that nothing was "
            "transferred, and that Full RT has right.",
        ),
    )


def _changed_by_cascade(evidence: Evidence, run: Run) -> Changed | None:
    samples, scores = run.samples, evidence.large_short_scores(run)
    if scores.isna().any():
        return None
    short = scores >= RIGHT
    after, moved = samples.score >= RIGHT, samples.exit == "transfer"
    full_rt, lost = evidence.full_rt(run), None
    if full_rt is not None:
        mine, theirs = evidence.common(run, full_rt)
        right = (theirs.score >= RIGHT).groupby(level=0).mean() >= RIGHT
        agreed = mine[(mine.exit != "transfer") & (mine.score < RIGHT)]
        lost = int(right.loc[agreed.index].sum())
    return _changed(evidence, run, after[moved], short[moved], lost)


def _changed_by_full_rt(evidence: Evidence, run: Run) -> Changed | None:
    other = evidence.short(run, "large")
    if other is None:
        return None
    after, before = evidence.common(run, other)
    if len(after) != len(before):  # one of them has repeats
        after, before = after[after.repeat == 0], before[before.repeat == 0]
    return _changed(evidence, run, after.score >= RIGHT, before.score >= RIGHT, None)


def _changed(evidence: Evidence, run: Run, after: pd.Series, before: pd.Series, lost: int | None) -> Changed:
    clusters = evidence.clusters(run)
    a, b = (metrics.plain(pd.DataFrame({"score": one.astype(float)})) for one in (after, before))
    comparison = metrics.compare(a, b, "", clusters)
    return Changed(run, after, before, 1.0 if comparison is None else comparison.p, lost, clusters)


# --- kinds of questions ---


@dataclass(frozen=True)
class OfKind:
    """A cascade and the large model's short answers on one kind of question."""

    run: Run
    kind: str
    documents: pd.Index
    comparison: Comparison
    adjusted: float


def kinds_table(evidence: Evidence) -> Iterator[Table]:
    """Yield MAI against the large model with the Simple prompt by kind of question, the worst kinds first."""
    columns: list[Of[OfKind]] = [
        Of("benchmark", "text", 0, lambda row: benchmark_name(row.run.benchmark)),
        Of("method", "text", 0, lambda row: evidence.name(row.run.method)),
        Of("kind", "text", 0, lambda row: row.kind),
        Of("n", "count", 0, lambda row: row.comparison.n),
        Of("MAI", "percent", 1, lambda row: row.comparison.first),
        Of("large S", "percent", 1, lambda row: row.comparison.second),
        Of("Full RT", "percent", 1, lambda row: _on(evidence, row, evidence.full_rt(row.run))),
        Of("large R", "percent", 1, lambda row: _on(evidence, row, evidence.large_r(row.run))),
        Of("MAI - large S, points", "percent", 1, lambda row: row.comparison.difference),
        Of("won", "count", 0, lambda row: row.comparison.only_first),
        Of("lost", "count", 0, lambda row: row.comparison.only_second),
        Of("p", "p", 0, lambda row: row.comparison.p),
        Of("p, adjusted", "p", 0, lambda row: row.adjusted),
    ]
    return table(
        "kinds",
        "MAI by kind of question",
        columns,
        [row for run in evidence.traced() for row in _of_kinds(evidence, run)],
        (
            "The kinds on which MAI has the lowest score are first. Kinds are those of the data set (MMMU: subject, "
            "ChartQA: human or augmented, POPE, MMBench and shapes: category); if it has none, the form of the gold "
            "answer. Mean scores in percent; p, won and lost are MAI against large S. The adjusted p (Holm) takes the "
            "number of kinds into account. Large R has one stage if there is such a run, else two.",
        ),
    )


def _of_kinds(evidence: Evidence, run: Run) -> list[OfKind]:
    other = evidence.short(run, "large")
    if other is None:
        return []
    mai, large = evidence.common(run, other)
    kinds = mai.kind[~mai.index.duplicated()]
    found = []
    for kind, documents in kinds.groupby(kinds).groups.items():
        first, second = (metrics.plain(one[one.index.isin(documents)]) for one in (mai, large))
        comparison = metrics.compare(first, second, "", evidence.clusters(run))
        assert comparison is not None
        found.append((str(kind), documents, comparison))
    found.sort(key=lambda one: (one[2].first, one[0]))
    adjusted = statistics.holm([comparison.p for _, _, comparison in found])
    return [OfKind(run, *one, p) for one, p in zip(found, adjusted, strict=True)]


def _on(evidence: Evidence, row: OfKind, other: Run | None) -> float | None:
    """Return the mean score of another run on the documents of a kind, if it has all of them."""
    if other is None:
        return None
    samples = evidence.common(row.run, other)[1]
    samples = samples[samples.index.isin(row.documents)]
    found = metrics.accuracy(samples, None)
    return found.value if found is not None and found.n == len(row.documents) else None
