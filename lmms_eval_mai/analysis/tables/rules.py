"""What other methods, other thresholds and other rules of agreement would have done, without a new run."""

import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pandas as pd

from lmms_eval_mai.analysis.paper_numbers import benchmark_name
from lmms_eval_mai.analysis.report import Column, Estimate, Table, table
from lmms_eval_mai.analysis.runs.folders import Run
from lmms_eval_mai.analysis.runs.replay import derived, replay, tokens
from lmms_eval_mai.analysis.runs.runs import Runs, is_of_base, name_columns
from lmms_eval_mai.analysis.tables.summary import RIGHT
from lmms_eval_mai.method.agreement import AgreementRules
from lmms_eval_mai.method.benchmarks import BENCHMARKS
from lmms_eval_mai.method.methods import FULL_RT, MAI, MAI_CONFIDENCE, MAI_CONFIDENCE_DIRECT, OWN_THINKING, Method

SHOWN_THRESHOLDS = (1.0, 0.999, 0.99, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.5, 0.4, 0.3)
"""The thresholds of the table."""
OTHER_RULES: dict[str, tuple[AgreementRules, ...]] = {
    "infovqa_val": (
        AgreementRules(),
        *(AgreementRules(value / 100, "anls") for value in (50, 60, 70, 80, 85, 90, 95, 100)),
    ),
    "chartqa": (AgreementRules(chartqa_match="exact"), AgreementRules(chartqa_match="relaxed")),
}
"""Benchmark -> the rules of agreement to try."""


@dataclass(frozen=True)
class Rule:
    """A method with a threshold and rules of agreement."""

    method: Method
    threshold: float | None
    """None: the method needs none."""
    agreement: AgreementRules

    def name(self, benchmark: str) -> str:
        """Return the arguments that set the rule."""
        arguments = [f"method={self.method.name}"]
        if self.threshold is not None:
            arguments.append(f"min_confidence={self.threshold:.10g}")
        elif benchmark == "chartqa":
            arguments.append(f"chartqa_match={self.agreement.chartqa_match}")
        elif benchmark in OTHER_RULES:
            arguments.append(f"infovqa_match={self.agreement.infovqa_match}")
            if self.agreement.infovqa_match == "anls":
                arguments.append(f"anls_threshold={self.agreement.anls_threshold:g}")
        return ",".join(arguments)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rule would have done on the documents of a run."""

    run: Run
    rule: Rule
    documents: pd.DataFrame
    """The result of `replay`."""
    full_rt: pd.Series | None
    """The score of Full RT of each document. None: not known."""
    is_run: bool
    """Whether a run has this rule."""


def rules_table(runs: Runs) -> Iterator[Table]:
    """Yield score and cost of other methods, thresholds and rules of agreement."""
    bases = [run for run in runs.bases("cascade") if has_rules(run)]
    rows = [row for run in bases for row in outcomes(runs, run)]
    exits = dict.fromkeys(exit for row in rows for exit in row.rule.method.exits[1:])

    def share(exit: str, row: Outcome) -> float | None:
        """Return the share of the documents that finish at an exit, in percent. None: the rule has another one."""
        return 100 * float((row.documents.exit == exit).mean()) if exit in row.rule.method.exits else None

    def against(row: Outcome) -> Estimate | None:
        return None if row.full_rt is None else runs.difference(row.run, row.documents.score, row.full_rt)

    columns: list[Column[Outcome]] = [
        *name_columns(runs, lambda row: row.run),
        Column("rule", "text", 0, lambda row: row.rule.name(row.run.benchmark)),
        Column("first\ncheck", "number", 1, lambda row: share(row.rule.method.exits[0], row)),
        *(Column(exit.replace("_", "_\n"), "number", 1, functools.partial(share, exit)) for exit in exits),
        Column("score", "percent", 2, lambda row: runs.share(row.run, row.documents.score)),
        Column("against\nFull RT", "percent", 2, against),
        Column("output\ntokens", "number", 1, lambda row: float(tokens(row.documents).mean())),
        Column("run", "text", 0, lambda row: "yes" if row.is_run else None),
    ]
    notes = [
        "Not in the paper: methods that ask how probable the large model's answer is. A threshold that was chosen with "
        "these documents looks better than it is: lmms-eval-mai calibrate chooses it with a bound.",
        "Exits in percent; scores are means over documents; output tokens of both models for one document. Calls are "
        "taken from all runs on the same documents with the same models; a rule whose calls are in no run is left "
        "out. This equals a real run if decoding is greedy and answers do not change with the batch (in bfloat16 "
        "vLLM's may, by a token).",
        *(
            f"{benchmark_name(run.benchmark)}, {runs.name(run.setup)}: the AUROC of the probability is {area:.1f}%."
            for run in bases
            if (area := auroc(runs, run)) is not None
        ),
    ]
    title = "Other methods, thresholds and rules of agreement, recomputed from the traces"
    return table("rules", title, columns, rows, notes)


def auroc(runs: Runs, run: Run) -> float | None:
    """Return how often a right short answer of the large model has a higher probability than a wrong one, in percent;
    50 is chance. None: not known, or all are right, or all wrong."""
    answers = runs.call_frames(run).get("large.simple")
    if answers is None:
        return None
    answers = answers[answers.answer_logprob.notna() & answers.score.notna()]
    right = answers.score >= RIGHT
    if right.nunique() < 2:
        return None
    from sklearn.metrics import roc_auc_score  # takes a second

    return 100 * float(roc_auc_score(right, answers.answer_logprob))


def has_rules(run: Run) -> bool:
    """Return whether a run has the rules of agreement of its benchmark: lmms-eval's own tasks have general ones."""
    return run.benchmark in BENCHMARKS and run.setup.variant is not None


def outcomes(runs: Runs, base: Run) -> list[Outcome]:
    """Return what each rule would have done whose calls are known. Empty if only one is known."""
    similar = [run for kind in ("cascade", "own") for run in runs.of(kind, base.benchmark) if is_of_base(base, run)]
    of_runs = {Rule(run.setup.method, run.setup.min_confidence, run.rules) for run in similar if not run.derived}
    agreements = dict.fromkeys([*OTHER_RULES.get(base.benchmark, ()), base.rules])
    rules = [Rule(MAI, None, agreement) for agreement in agreements]
    thresholds = {rule.threshold for rule in of_runs if rule.threshold is not None and 0 < rule.threshold <= 1}
    methods = sorted({rule.method for rule in of_runs} - {MAI}, key=str)
    for method in dict.fromkeys((MAI_CONFIDENCE, MAI_CONFIDENCE_DIRECT, OWN_THINKING, *methods)):
        each = sorted({*SHOWN_THRESHOLDS, *thresholds}, reverse=True) if method.needs_threshold else [None]
        rules += [Rule(method, threshold, base.rules) for threshold in each]
    full_rt = replay_of(runs, base, FULL_RT)
    scores = None if full_rt is None else full_rt.score
    outcomes = [
        Outcome(base, rule, documents, scores, _is_run(rule, of_runs))
        for rule in rules
        if (documents := replay_of(runs, base, rule.method, rule.threshold, rule.agreement)) is not None
    ]
    return outcomes if len(outcomes) > 1 else []


def _is_run(rule: Rule, of_runs: Collection[Rule]) -> bool:
    """Return whether a run has a rule. Rules of agreement count only where a method compares answers."""
    compares = any(stop.agree for stop in rule.method.stops)
    same = [other for other in of_runs if (other.method, other.threshold) == (rule.method, rule.threshold)]
    return any(other.agreement == rule.agreement or not compares for other in same)


def replay_of(
    runs: Runs, run: Run, method: Method, threshold: float | None = None, rules: AgreementRules | None = None
) -> pd.DataFrame | None:
    """Return what a method would have done on the documents of a run. None: a call is not known."""
    frames = runs.call_frames(run)
    setup = run.setup.of_replays
    return replay(method, frames, setup, run.benchmark, rules or run.rules, threshold) if frames else None


def add_replays(runs: Runs, methods: Collection[Method], threshold: float | None) -> Iterator[str]:
    """Add the result of each method to the runs, for each pair on each benchmark. Yields a sentence for each method
    that cannot be replayed."""
    bases = runs.bases("cascade", "own", "full_rt", "alone")
    for method in methods:
        replays = [(base, replay_of(runs, base, method, threshold)) for base in bases]
        for base, documents in replays:
            if documents is not None:
                setup = base.setup.of_replays.with_method(method, threshold)
                runs.add(derived(base, method, setup, documents, runs.call_frames(base)))
        if all(documents is None for _, documents in replays):
            asked = ", ".join(ask.name for ask in method.asks)
            yield (
                f"method={method.name} cannot be replayed: its calls ({asked}) are not all in these runs of one pair, "
                "on the same documents, with the same decoding."
            )
