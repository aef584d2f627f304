"""What other methods, other thresholds and other rules of agreement would have done, without a new run."""

import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pandas as pd

from lmms_eval_mai.method.agreement import AgreementRules
from lmms_eval_mai.method.benchmarks import BENCHMARKS
from lmms_eval_mai.method.methods import MAI, MAI_CONFIDENCE, MAI_CONFIDENCE_DIRECT, OWN_THINKING, Method
from lmms_eval_mai.reports import metrics
from lmms_eval_mai.reports.folders import Run
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.replay import derived, replay, tokens
from lmms_eval_mai.reports.report import Column, Estimate, Table, table
from lmms_eval_mai.reports.runs import Runs, name_columns
from lmms_eval_mai.reports.setups import KINDS
from lmms_eval_mai.reports.summary import RIGHT

THRESHOLDS = (1.0, 0.999, 0.99, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.5, 0.4, 0.3)
"""The thresholds of the table and of the figure."""
AGREEMENT: dict[str, tuple[AgreementRules, ...]] = {
    "infovqa_val": (
        *(AgreementRules(anls_threshold=value / 100) for value in (50, 60, 70, 80, 85, 90, 95, 100)),
        *(AgreementRules(anls_threshold=value, infovqa_match="anls") for value in (0.5, 0.9)),
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
        given = [f"method={self.method.name}"]
        if self.threshold is not None:
            given.append(f"min_confidence={self.threshold:.10g}")
        elif benchmark == "chartqa":
            given.append(f"chartqa_match={self.agreement.chartqa_match}")
        elif benchmark in AGREEMENT:
            given += ["infovqa_match=anls"] * (self.agreement.infovqa_match == "anls")
            given.append(f"anls_threshold={self.agreement.anls_threshold:g}")
        return ",".join(given)


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
    bases = [run for run in runs.bases() if has_rules(run)]
    known = [found for run in bases if len(found := outcomes(runs, run)) > 1]
    exits = dict.fromkeys(exit for found in known for row in found for exit in row.rule.method.exits[1:])

    def share(exit: str, row: Outcome) -> float | None:
        """Return the share of the documents that finish at an exit, in percent. None: the rule has another one."""
        return 100 * float((row.documents.exit == exit).mean()) if exit in row.rule.method.exits else None

    columns: list[Column[Outcome]] = [
        *name_columns(runs, lambda row: row.run),
        Column("rule", "text", 0, lambda row: row.rule.name(row.run.benchmark)),
        Column("first\ncheck", "number", 1, lambda row: share(row.rule.method.exits[0], row)),
        *(Column(exit.replace("_", "_\n"), "number", 1, functools.partial(share, exit)) for exit in exits),
        Column("score", "percent", 2, lambda row: runs.share(row.run, row.documents.score)),
        Column("against\nFull RT", "percent", 2, lambda row: _against(runs, row)),
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
    return table("rules", title, columns, [outcome for found in known for outcome in found], notes)


def auroc(runs: Runs, run: Run) -> float | None:
    """Return how often a right short answer of the large model has a higher probability than a wrong one, in percent;
    50 is chance. None: not known, or all are right, or all wrong."""
    answers = runs.known(run).get("large.simple")
    if answers is None:
        return None
    known = answers.answer_logprob.notna() & answers.score.notna()
    right = answers.score[known] >= RIGHT
    if right.nunique() < 2:
        return None
    from sklearn.metrics import roc_auc_score  # takes a second

    return 100 * float(roc_auc_score(right, answers.answer_logprob[known]))


def has_rules(run: Run) -> bool:
    """Return whether a run has the rules of agreement of its benchmark: lmms-eval's own tasks have general ones."""
    return run.benchmark in BENCHMARKS and run.setup.variant is not None


def outcomes(runs: Runs, run: Run) -> list[Outcome]:
    """Return what each rule would have done whose calls are known."""
    same = [one for kind in ("cascade", "own") for one in runs.of(kind, run.benchmark) if is_of_base(run, one)]
    made = {Rule(one.setup.method, one.setup.min_confidence, one.rules) for one in same if not one.derived}
    own = {rule.method for rule in made}
    rules = [Rule(MAI, None, one) for one in dict.fromkeys([*AGREEMENT.get(run.benchmark, ()), run.rules])]
    thresholds = {rule.threshold for rule in made if rule.threshold is not None and 0 < rule.threshold <= 1}
    for method in dict.fromkeys((MAI_CONFIDENCE, MAI_CONFIDENCE_DIRECT, OWN_THINKING, *sorted(own, key=str))):
        if method != MAI:
            each = sorted({*THRESHOLDS, *thresholds}, reverse=True) if method.needs_threshold else [None]
            rules += [Rule(method, value, run.rules) for value in each]
    full_rt = replay_of(runs, run, run.setup.full_rt().method)
    decided = ((rule, replay_of(runs, run, rule.method, rule.threshold, rule.agreement)) for rule in rules)
    scores = None if full_rt is None else full_rt.score
    return [Outcome(run, rule, found, scores, _is_made(rule, made)) for rule, found in decided if found is not None]


def _is_made(rule: Rule, made: Collection[Rule]) -> bool:
    """Return whether a run has a rule. Rules of agreement count only where a method compares answers."""
    compares = any(stop.agree for stop in rule.method.stops)
    return any(
        (one.method, one.threshold) == (rule.method, rule.threshold)
        and (one.agreement == rule.agreement or not compares)
        for one in made
    )


def is_of_base(base: Run, run: Run) -> bool:
    """Return whether a run has the models, the prompts and the decoding of a base (`Runs.bases`)."""
    setup, other = base.setup, run.setup
    same = (setup.model, setup.variant, setup.two_stage, setup.decoding) == (
        (other.model, other.variant, other.two_stage, other.decoding)
    )
    return same and (not other.small or (other.small, other.transfer) == (setup.small, setup.transfer))


def replay_of(
    runs: Runs, run: Run, method: Method, threshold: float | None = None, rules: AgreementRules | None = None
) -> pd.DataFrame | None:
    """Return what a method would have done on the documents of a run. None: a call is not known."""
    known = runs.known(run)
    setup = run.setup.of_replays
    return replay(method, known, setup, run.benchmark, rules or run.rules, threshold) if known else None


def is_of_large(run: Run) -> bool:
    """Return whether a run was made by `mai_cascade`, and asked the large model."""
    return run.ours and not run.derived and bool((run.calls.side == "large").any())


def add_replays(runs: Runs, methods: Collection[Method], threshold: float | None) -> Iterator[str]:
    """Add the result of each method to the runs, for each pair on each benchmark. Yields a sentence for each method
    that cannot be replayed."""
    for method in methods:
        bases = [run for benchmark in runs.benchmarks() for run in _any_bases(runs, benchmark)]
        added = 0
        for run in bases:
            made = replay_of(runs, run, method, threshold)
            if made is not None:
                setup = run.setup.of_replays.with_method(method, threshold)
                runs.add(derived(run, method, setup, made, runs.known(run)))
                added += 1
        if not added:
            asked = ", ".join(ask.name for ask in method.asks)
            yield (
                f"method={method.name} cannot be replayed: its calls ({asked}) are not all in these runs of one pair, "
                "on the same documents, with the same decoding."
            )


def _any_bases(runs: Runs, benchmark: str) -> list[Run]:
    """Return a run of each pair with each thinking: a cascade, or else Full RT, which names both models, or else one of
    the large model."""
    found: dict[tuple[str, str, object, bool, object], Run] = {}
    for kind in reversed(KINDS):
        for run in runs.of(kind, benchmark):
            if is_of_large(run) and run.samples.exit.notna().all():
                setup = run.setup.of_replays
                of_pair = (one.setup.small for one in found.values() if one.setup.model == setup.model)
                small = setup.small or next(of_pair, "")
                found.setdefault((small, setup.model, setup.variant, setup.two_stage, setup.decoding), run)
    return list(found.values())


def _against(runs: Runs, row: Outcome) -> Estimate | None:
    """Return the mean score minus that of Full RT on the same documents, in points."""
    if row.full_rt is None:
        return None
    scores = metrics.plain(row.documents.score), metrics.plain(row.full_rt)
    found = metrics.compare(*scores, "", runs.clusters(row.run), is_tested=False)
    return None if found is None else found.difference
