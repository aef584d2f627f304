"""Builds a report: reads the folders, makes every table that the runs allow, and tells what is missing."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lmms_eval_mai.reports import figures, reading
from lmms_eval_mai.reports.claims import claims
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.more_tables import exits, kinds, methods, readable, routers, rules
from lmms_eval_mai.reports.paper_numbers import benchmark_name, documents, family
from lmms_eval_mai.reports.paper_tables import alone, decoding, latency, pairs, sparse
from lmms_eval_mai.reports.report import Report, RunSummary, Table

TABLES: tuple[tuple[Callable[[Evidence], Iterator[Table]], str], ...] = (
    (alone.token_tables, "Tables 5 and 13 need runs of mai_cascade with --log_samples."),
    (alone.score_tables, "Tables 6, 7 and 14 need runs with mode=small or mode=large."),
    (pairs.transfer_table, "Table 8 needs a run with mode=transfer."),
    (sparse.sparse_table, ""),
    (pairs.cascade_table, "Table 10 needs a run with mode=cascade."),
    (latency.estimated_times, ""),
    (decoding.decoding_table, ""),
    (
        pairs.two_stage_table,
        "Table 15 needs two cascades of a pair: one of a task with _s or _r, one with _r_s2.",
    ),
    (methods.method_table, ""),
    (
        methods.comparison_table,
        "MAI cannot be compared: no cascade has documents in common with another method.",
    ),
    (exits.accuracy_by_exit, "Accuracy by exit needs a cascade with --log_samples."),
    (exits.agreement, "The precision of agreement needs a cascade with --log_samples."),
    (exits.harm_and_rescue, "Harm and rescue need a cascade with --log_samples."),
    (routers.router_table, "The random router needs Full RT (mode=transfer), or the large model with R, beside MAI."),
    (rules.rules_table, ""),
    (kinds.kinds_table, "The kinds of questions need a cascade with --log_samples."),
    (readable.unreadable_table, "The share of unreadable answers needs runs of mai_cascade with --log_samples."),
)
"""Each table, and the sentence if the runs do not allow it. Empty: the table is only for some benchmarks."""

OF_CASCADES = (
    pairs.cascade_table,
    pairs.two_stage_table,
    methods.comparison_table,
    exits.accuracy_by_exit,
    exits.agreement,
    exits.harm_and_rescue,
    routers.router_table,
    kinds.kinds_table,
)
NO_RUN = "There is no run of lmms-eval, so there are only the tables of `lmms-eval-mai attention`."
NO_CASCADE = (
    "There is no run with mode=cascade. Tables 10 and 15, the exits, and the comparison of MAI with other methods need "
    "one, with --log_samples."
)
"""The sentence for all tables in `OF_CASCADES`, if there is no cascade."""


def report(folders: Sequence[Path]) -> Report:
    """Return the report of all runs in the folders. Raises `ArgumentError` if there is no run."""
    found = reading.read(folders)
    return of_evidence(Evidence(found.runs), found.gaps, found.tables)


def of_evidence(evidence: Evidence, gaps: Sequence[str] = (), of_attention: Sequence[Table] = ()) -> Report:
    """Return the report of the runs in `evidence`, which `page/` needs too. `of_attention`: the tables of
    `lmms-eval-mai attention`."""
    if not evidence.runs:
        return Report((), tuple(of_attention), (), (), (*gaps, NO_RUN))
    tables: list[Table] = []
    missing = []
    is_without_cascade = not any(evidence.of("cascade"))
    for make, needs in TABLES:
        made = list(make(evidence))
        tables += made
        if not made and needs:
            missing.append(NO_CASCADE if is_without_cascade and make in OF_CASCADES else needs)
    drawn = tuple(figures.figures(evidence))
    claimed = tuple(map(str, claims(evidence)))
    sentences = dict.fromkeys([*gaps, *evidence.gaps, *_other_numbers(evidence), *_other_pairs(evidence), *missing])
    return Report(claimed, (*tables, *of_attention), drawn, summaries(evidence), tuple(sentences))


def summaries(evidence: Evidence) -> tuple[RunSummary, ...]:
    """Return one line for each run, used or not."""
    used = [run for run in evidence.runs.values() if not run.derived]
    return tuple(
        RunSummary(
            file=str(run.file),
            task=run.task,
            benchmark=run.benchmark,
            method=evidence.name(run.method),
            model=" + ".join(filter(None, (run.method.model, run.method.small))),
            documents=len(run.documents) or run.number,
            wall_s=run.wall_s,
            used=run not in evidence.unused,
        )
        for run in [*used, *evidence.unused]
    )


def _other_numbers(evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for each benchmark on which runs of the paper's models have other numbers of documents."""
    for benchmark in evidence.benchmarks():
        expected = documents(benchmark)
        runs = [run for (of, method), run in evidence.runs.items() if of == benchmark and family(method.model)]
        numbers = {len(run.documents) or run.number for run in runs}
        if expected is not None and runs and numbers != {expected}:
            shown = ", ".join(map(str, sorted(numbers)))
            yield (
                f"{benchmark_name(benchmark)}: the paper has {expected} documents and these runs {shown}, so the "
                "differences from the paper are between different documents."
            )


def _other_pairs(evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for each benchmark that has cascades, and runs of models that are in none of them."""
    for benchmark in evidence.benchmarks():
        cascades = list(evidence.of("cascade", benchmark))
        others = [run for mode in ("alone", "transfer") for run in evidence.of(mode, benchmark)]
        apart = [run for run in others if not any(methods.is_comparable(one, run) for one in cascades)]
        if cascades and apart:
            shown = ", ".join(evidence.name(run.method) for run in apart)
            yield (
                f"{benchmark_name(benchmark)}: no cascade has the models of {shown}, so MAI is not compared with them."
            )
