"""The exits of a cascade: accuracy by exit, precision of agreement, and harm and rescue of the transfer."""

from collections import Counter
from collections.abc import Iterator, Sequence

from lmms_eval_mai.paper.sample import EXITS
from lmms_eval_mai.reports.estimates import accuracy, share
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.records import Document, Run
from lmms_eval_mai.reports.report import Cell, Column, Table
from lmms_eval_mai.reports.scoring import golds_of, score_of
from lmms_eval_mai.statistics import mcnemar


def accuracy_by_exit(evidence: Evidence) -> Iterator[Table]:
    """Yield the accuracy of MAI by exit, beside that of both models alone on the same documents."""
    rows = [row for run in traced(evidence) for row in _exit_rows(evidence, run)]
    if rows:
        yield Table(
            key="accuracy-by-exit",
            title="Accuracy by exit",
            columns=(
                Column("benchmark", "text"),
                Column("method", "text"),
                Column("exit", "text"),
                Column("n", "count"),
                Column("share, %"),
                Column("MAI"),
                Column("small S"),
                Column("large S"),
                Column("Full RT"),
            ),
            rows=tuple(rows),
            notes=("Mean score of the documents in percent, on POPE and MMBench too. The documents are those of MAI.",),
        )


def agreement(evidence: Evidence) -> Iterator[Table]:
    """Yield how often an agreement is right, and what two guessers would do."""
    rows = [row for run in traced(evidence) for row in _agreement_rows(evidence, run)]
    if rows:
        yield Table(
            key="agreement",
            title="Precision of agreement",
            columns=(
                Column("benchmark", "text"),
                Column("method", "text"),
                Column("verification", "text"),
                Column("compared", "count"),
                Column("agree, %"),
                Column("agree and right, %"),
                Column("agree and wrong, %"),
                Column("right if they agree, %"),
                Column("guessers agree, %"),
                Column("guessers right if they agree, %"),
                Column("kappa", digits=2),
            ),
            rows=tuple(rows),
            notes=(
                "short: both short answers. think: the small model's thought answer and the large model's short one. "
                "Right: a score of at least 0.5. The guessers answer at random, independently of each other and of the "
                "question, as often with each answer as the two models. Kappa: (agree - guessers agree) / (1 - "
                "guessers agree).",
            ),
        )


def harm_and_rescue(evidence: Evidence) -> Iterator[Table]:
    """Yield how many documents the transfer wins and loses against the large model's short answer."""
    rows = [row for run in traced(evidence) if (row := _harm_row(evidence, run, True)) is not None]
    rows += [row for run in evidence.of("transfer") if (row := _harm_row(evidence, run, False)) is not None]
    if rows:
        yield Table(
            key="harm-and-rescue",
            title="Harm and rescue: what the transfer changes against the large model's short answer",
            columns=(
                Column("benchmark", "text"),
                Column("method", "text"),
                Column("transferred", "count"),
                Column("large S right", "count"),
                Column("of these lost", "count"),
                Column("harm, %"),
                Column("large S wrong", "count"),
                Column("of these won", "count"),
                Column("rescue, %"),
                Column("net", "count"),
                Column("p", "p"),
            ),
            rows=tuple(rows),
            notes=(
                "MAI transfers only documents on which the models disagree; Full RT transfers all. Right: a score of "
                "at least 0.5. p is McNemar's exact test of lost against won.",
            ),
        )


def traced(evidence: Evidence) -> Iterator[Run]:
    """Yield the cascades whose documents have a trace and a score."""
    for run in evidence.of("cascade"):
        if run.documents and all(one.verifications and one.score is not None for one in run.documents):
            yield run


def is_right(score: float | None) -> bool:
    """Return whether a score counts as right. ANLS is the only score between 0 and 1."""
    return score is not None and score >= 0.5


def large_short(evidence: Evidence, run: Run) -> Run | None:
    """Return the run of the large model with the Simple prompt, or with the own prompt of another task."""
    return evidence.get(run.benchmark, run.method.alone("large", "S" if run.method.variant else None))


def small_short(evidence: Evidence, run: Run) -> Run | None:
    """Return the run of the small model with the Simple prompt, or with the own prompt of another task."""
    return evidence.get(run.benchmark, run.method.alone("small", "S" if run.method.variant else None))


def _exit_rows(evidence: Evidence, run: Run) -> Iterator[tuple[Cell, ...]]:
    others = [
        small_short(evidence, run),
        large_short(evidence, run),
        evidence.get(run.benchmark, run.method.full_rt()),
    ]
    for exit in EXITS["cascade"]:
        documents = [document for document in run.documents if document.exit == exit]
        yield (
            benchmark_name(run.benchmark),
            evidence.name(run.method),
            exit,
            len(documents),
            share(len(documents), len(run.documents)),
            accuracy(documents),
            *(accuracy(_same(documents, other)) for other in others),
        )


def _same(documents: Sequence[Document], run: Run | None) -> list[Document]:
    """Return the documents of a run that are among the given ones."""
    wanted = {document.doc_id for document in documents}
    return [one for one in run.documents if one.doc_id in wanted and one.score is not None] if run else []


def _agreement_rows(evidence: Evidence, run: Run) -> Iterator[tuple[Cell, ...]]:
    for number, name in enumerate(("short", "think")):
        compared = [document for document in run.documents if len(document.verifications) > number]
        if not compared:
            continue
        agreed = [document for document in compared if document.verifications[number].agree]
        right = sum(is_right(document.score) for document in agreed)
        chance, chance_right = _guessers(run.benchmark, compared, number)
        kappa = (len(agreed) / len(compared) - chance) / (1 - chance) if chance < 1 else None
        yield (
            benchmark_name(run.benchmark),
            evidence.name(run.method),
            name,
            len(compared),
            share(len(agreed), len(compared)),
            share(right, len(compared)),
            share(len(agreed) - right, len(compared)),
            share(right, len(agreed)),
            100 * chance,
            None if chance_right is None else 100 * chance_right,
            kappa,
        )


def _guessers(benchmark: str, documents: Sequence[Document], number: int) -> tuple[float, float | None]:
    """Return the share of agreement of two guessers with the models' shares of each answer, and how often they are
    right if they agree; None if they never agree or if the benchmark's scorer is not known."""
    verifications = [document.verifications[number] for document in documents]
    small = Counter(one.small for one in verifications if one.small is not None)
    large = Counter(one.large for one in verifications if one.large is not None)
    both = {answer: small[answer] * large[answer] / len(documents) ** 2 for answer in small if answer in large}
    agree = sum(both.values())
    if not agree or score_of(benchmark, None, "") is None:
        return agree, None
    golds: Counter[str] = Counter()
    for document in documents:
        golds.update({gold.strip().lower() for gold in golds_of(document.target)})
    right = sum(weight * golds[answer.lower()] / len(documents) for answer, weight in both.items())
    return agree, right / agree


def _harm_row(evidence: Evidence, run: Run, only_transferred: bool) -> tuple[Cell, ...] | None:
    before = large_short(evidence, run)
    if before is None:
        return None
    after, short = evidence.common(run, before)
    pairs = [
        (is_right(a.score), is_right(b.score))
        for a, b in zip(after, short, strict=True)
        if a.exit == "transfer" or not only_transferred
    ]
    was_right = sum(b for _, b in pairs)
    lost, won = sum(b and not a for a, b in pairs), sum(a and not b for a, b in pairs)
    return (
        benchmark_name(run.benchmark),
        evidence.name(run.method),
        len(pairs),
        was_right,
        lost,
        share(lost, was_right),
        len(pairs) - was_right,
        won,
        share(won, len(pairs) - was_right),
        won - lost,
        mcnemar(won, lost),
    )
