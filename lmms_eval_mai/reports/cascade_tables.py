"""What happens inside a cascade: accuracy by exit, the precision of agreement, harm and rescue, and the kinds of
questions."""

from collections.abc import Iterator

import pandas as pd

from lmms_eval_mai.paper.sample import exits_of
from lmms_eval_mai.reports import metrics
from lmms_eval_mai.reports.evidence import Evidence, of_comparison, of_run
from lmms_eval_mai.reports.metrics import Comparison
from lmms_eval_mai.reports.read import Run
from lmms_eval_mai.reports.report import Estimate, Of, Table, table

RIGHT = 0.5
"""A score counts as right from here on. ANLS is the only score between 0 and 1."""
OF_DOCUMENTS = (
    ("POPE", "On POPE, this is the share of right answers, not F1."),
    ("MMBench", "On MMBench, each rotation of a question counts as a document."),
)
"""Notes of tables with mean scores of documents."""

Part = tuple[Run, str, pd.DataFrame]
"""A cascade, one of its exits, and the samples of this exit."""


def exit_table(evidence: Evidence) -> Iterator[Table]:
    """Yield the accuracy of MAI by exit, beside that of other methods on the same documents."""

    def beside(row: Part, other: Run | None) -> Estimate | None:
        return _on(evidence, row[0], other, row[2].index)

    columns: list[Of[Part]] = [
        *of_run(evidence, lambda row: row[0]),
        Of("exit", "text", 0, lambda row: row[1]),
        Of("n", "count", 0, lambda row: len(row[2])),
        Of("share, %", "percent", 1, lambda row: evidence.share(row[0], row[0].samples.exit == row[1])),
        Of("MAI", "percent", 1, lambda row: evidence.accuracy(row[0], row[2])),
        Of("small S", "percent", 1, lambda row: beside(row, evidence.short(row[0], "small"))),
        Of("large S", "percent", 1, lambda row: beside(row, evidence.short(row[0], "large"))),
        Of("Full RT", "percent", 1, lambda row: beside(row, evidence.full_rt(row[0]))),
    ]
    return table(
        "accuracy-by-exit",
        "Accuracy by exit",
        columns,
        [
            (run, exit, run.samples[run.samples.exit == exit])
            for run in evidence.traced()
            for exit in exits_of("cascade", run.method.verify)
        ],
        ("Mean score of the documents in percent. The documents are those of MAI.", *OF_DOCUMENTS),
    )


def _on(evidence: Evidence, run: Run, other: Run | None, documents: pd.Index) -> Estimate | None:
    """Return the accuracy of another run on some documents of a cascade."""
    if other is None:
        return None
    samples = evidence.common(run, other)[1]
    return evidence.accuracy(run, samples[samples.index.isin(documents)])


# --- agreement ---

Checked = tuple[Run, str, str, pd.DataFrame]
"""A cascade, a verification, a kind of question, and for each answer that was compared: whether the models `agree`, and
whether the large model's short answer is `right` (1 or 0; nan if it is not known)."""


def agreement_table(evidence: Evidence) -> Iterator[Table]:
    """Yield how often an agreement is right, and how many errors it lets through."""

    def share(row: Checked, found: pd.Series | None) -> Estimate | None:
        """Return the share of true values in percent. None if one of them is not known."""
        return None if found is None or found.isna().any() else evidence.share(row[0], found)

    def accepted(row: Checked) -> pd.Series | None:
        """Return whether the models agree, of the answers that are wrong. None if it is not known which are."""
        return None if row[3].right.isna().any() else row[3].agree[row[3].right == 0]

    columns: list[Of[Checked]] = [
        *of_run(evidence, lambda row: row[0]),
        Of("verification", "text", 0, lambda row: row[1]),
        Of("kind", "text", 0, lambda row: row[2]),
        Of("compared", "count", 0, lambda row: len(row[3])),
        Of("agree, %", "percent", 1, lambda row: share(row, row[3].agree)),
        Of("right if they agree, %", "percent", 1, lambda row: share(row, row[3].right[row[3].agree])),
        Of("large S right, %", "percent", 1, lambda row: share(row, row[3].right)),
        Of("right answers accepted, %", "percent", 1, lambda row: share(row, row[3].agree[row[3].right == 1])),
        Of("errors of large S", "count", 0, lambda row: None if (one := accepted(row)) is None else len(one)),
        Of("errors accepted", "count", 0, lambda row: None if (one := accepted(row)) is None else int(one.sum())),
        Of("errors accepted, %", "percent", 1, lambda row: share(row, accepted(row))),
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
        answers = pd.DataFrame({"agree": run.samples[column][compared].astype(bool), "right": right[compared]})
        if len(kinds):
            yield run, verification, "all kinds", answers
        if kinds.nunique() > 1:
            yield from ((run, verification, kind, answers[kinds == kind]) for kind in sorted(kinds.unique()))


# --- harm and rescue ---

Changed = tuple[Run, pd.DataFrame]
"""A cascade or Full RT, and its transferred answers (`transferred`)."""


def transferred(evidence: Evidence, run: Run) -> pd.DataFrame | None:
    """Return whether the transferred answers of a cascade or of Full RT are right (`after`), and the large model's
    short answers `before` them, with `repeat`. None: the short answers are not known."""
    samples = run.samples
    if run.method.mode == "cascade":
        before = evidence.large_short_scores(run)
    elif (other := evidence.short(run, "large")) is not None:
        samples, theirs = evidence.common(run, other)
        if not samples.index.equals(theirs.index):  # one of them has repeats
            samples, theirs = samples[samples.repeat == 0], theirs[theirs.repeat == 0]
        before = theirs.score
    else:
        return None
    if before.isna().any():
        return None
    answers = samples[["repeat"]].assign(after=samples.score >= RIGHT, before=before.to_numpy() >= RIGHT)
    return answers[samples.exit == "transfer"]


def harm_table(evidence: Evidence) -> Iterator[Table]:
    """Yield how many documents the transfer wins and loses against the large model's short answer."""

    def p(row: Changed) -> float:
        after, before = (metrics.plain(row[1][name]) for name in ("after", "before"))
        comparison = metrics.compare(after, before, "", evidence.clusters(row[0]))
        return 1.0 if comparison is None else comparison.p

    def of(row: Changed, before: bool) -> pd.Series:
        """Return whether the transferred answers are right, of those whose short answer is right or wrong."""
        return row[1].after[row[1].before == before]

    columns: list[Of[Changed]] = [
        *of_run(evidence, lambda row: row[0]),
        Of("transferred", "count", 0, lambda row: len(row[1])),
        Of("large S right", "count", 0, lambda row: len(of(row, True))),
        Of("of these lost", "count", 0, lambda row: int((~of(row, True)).sum())),
        Of("harm, %", "percent", 1, lambda row: evidence.share(row[0], ~of(row, True))),
        Of("large S wrong", "count", 0, lambda row: len(of(row, False))),
        Of("of these won", "count", 0, lambda row: int(of(row, False).sum())),
        Of("rescue, %", "percent", 1, lambda row: evidence.share(row[0], of(row, False))),
        Of("net", "count", 0, lambda row: int(row[1].after.sum()) - int(row[1].before.sum())),
        Of("p", "p", 0, p),
        Of("lost by the checks", "count", 0, lambda row: _lost_by_checks(evidence, row[0])),
    ]
    runs = [*evidence.traced(), *evidence.of("transfer")]
    changed = [(run, answers) for run in runs if (answers := transferred(evidence, run)) is not None]
    return table(
        "harm-and-rescue",
        "Harm and rescue: what the transfer changes against the large model's short answer",
        columns,
        [row for row in changed if len(row[1]) or row[0].method.mode == "cascade"],
        (
            "MAI transfers only documents that pass no check, and the short answer is its own; Full RT transfers all. "
            "Right: a score of at least 0.5. p is of lost against won (McNemar's exact test if each document counts by "
            "itself). Lost by the checks: wrong short answers that passed a check, by agreement or by confidence, and "
            "that Full RT has right.",
        ),
    )


def _lost_by_checks(evidence: Evidence, run: Run) -> int | None:
    """Return the number of answers that a cascade did not transfer, that are wrong, and that Full RT has right. None:
    there is no Full RT beside a cascade."""
    full_rt = evidence.full_rt(run)
    if run.method.mode == "transfer" or full_rt is None:
        return None
    mine, theirs = evidence.common(run, full_rt)
    right = (theirs.score >= RIGHT).groupby(level=0).mean() >= RIGHT
    agreed = mine[(mine.exit != "transfer") & (mine.score < RIGHT)]
    return int(right.loc[agreed.index].sum())


# --- kinds of questions ---


OfKind = tuple[Run, str, pd.Index, Comparison]
"""A cascade, a kind of question, its documents, and the comparison with the large model's short answers on them."""


def kinds_table(evidence: Evidence) -> Iterator[Table]:
    """Yield MAI against the large model with the Simple prompt by kind of question, the worst kinds first."""

    def on(row: OfKind, other: Run | None) -> float | None:
        """Return the mean score of another run, if it has all documents of the kind."""
        found = _on(evidence, row[0], other, row[2])
        return found.value if found is not None and found.n == len(row[2]) else None

    def compared(row: OfKind) -> Comparison:
        return row[3]

    columns: list[Of[OfKind]] = [
        *of_run(evidence, lambda row: row[0]),
        Of("kind", "text", 0, lambda row: row[1]),
        *of_comparison(compared, n="n", first="MAI", second="large S"),
        Of("Full RT", "percent", 1, lambda row: on(row, evidence.full_rt(row[0]))),
        Of("large R", "percent", 1, lambda row: on(row, evidence.large_r(row[0]))),
        *of_comparison(compared, difference="MAI - large S, points", only_first="won", only_second="lost"),
        *of_comparison(compared, p="p", adjusted="p, adjusted"),
    ]
    return table(
        "kinds",
        "MAI by kind of question",
        columns,
        [row for run in evidence.traced() for row in _of_kinds(evidence, run)],
        (
            "The kinds on which MAI has the lowest score are first. Kinds are those of the data set; if it has none, "
            "the form of the gold answer. Mean scores in percent; p, won and lost are MAI against large S. The "
            "adjusted p (Holm) takes the number of kinds into account. Large R has one stage if there is such a run, "
            "else two.",
            *OF_DOCUMENTS,
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
        first, second = (metrics.plain(one.score[one.index.isin(documents)]) for one in (mai, large))
        comparison = metrics.compare(first, second, "", evidence.clusters(run))
        assert comparison is not None
        found.append((str(kind), documents, comparison))
    found.sort(key=lambda one: (one[2].first, one[0]))
    adjusted = metrics.adjusted([comparison for _, _, comparison in found])
    return [(run, kind, documents, one) for (kind, documents, _), one in zip(found, adjusted, strict=True)]
