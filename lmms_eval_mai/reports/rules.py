"""What a cascade would have done with another first check or with other rules of agreement, without a new run.

`known_answers` puts together what one cascade and Full RT of the same documents have: all calls that any rule needs.
Those of Full RT are the same as in a cascade only if they do not depend on the run: greedy decoding, and an engine
whose answers do not depend on the batch. A rule that needs no other calls than those of the cascade needs no Full RT.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from lmms_eval_mai.contract import Side
from lmms_eval_mai.paper.agreement import AgreementRules
from lmms_eval_mai.paper.benchmarks import BENCHMARKS, GENERIC
from lmms_eval_mai.paper.confidence import Choices, Verify
from lmms_eval_mai.paper.sample import Exit, exits_of
from lmms_eval_mai.reports import metrics
from lmms_eval_mai.reports.folders import Run
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.report import Estimate, Of, Table, table
from lmms_eval_mai.reports.runs import Runs, of_run
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
STAGES: dict[str, tuple[Side, tuple[str, ...]]] = {
    "large_short": ("large", ("short",)),
    "small_short": ("small", ("short",)),
    "thinking": ("small", ("think", "stage2")),
    "transfer": ("large", ("score", "transfer")),
    "large_thinking": ("large", ("think", "stage2")),
}
"""Column with output tokens -> the model and the stages of its calls."""


@dataclass(frozen=True)
class Rule:
    """The two checks: the rule of the first one with its threshold, and the rules of agreement of both."""

    choices: Choices
    threshold: float | None
    """None: verify=agreement."""
    agreement: AgreementRules

    @property
    def exits(self) -> tuple[Exit, ...]:
        """The exits of a cascade with this rule."""
        return exits_of("cascade", self.choices)

    def name(self, benchmark: str) -> str:
        """Return the arguments that set the rule."""
        if self.threshold is not None:
            return f"{self.choices},min_confidence={self.threshold:.10g}"
        if self.choices.later:
            return str(self.choices)
        if benchmark == "chartqa":
            return f"chartqa_match={self.agreement.chartqa_match}"
        if benchmark not in AGREEMENT:
            return "verify=agreement"
        match = "infovqa_match=anls," if self.agreement.infovqa_match == "anls" else ""
        return f"{match}anls_threshold={self.agreement.anls_threshold:g}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a cascade with a rule would have done."""

    run: Run
    rule: Rule
    documents: pd.DataFrame
    """`decide`: `exit`, `score` and `tokens` of each document."""
    full_rt: pd.Series
    """The score of Full RT of each document; nan if there is none."""
    is_run: bool
    """Whether a run has this rule."""


def rules_table(runs: Runs) -> Iterator[Table]:
    """Yield score and cost of the cascade with other first checks and with other rules of agreement."""
    cascades = [run for run in runs.first_checks() if has_rules(run)]
    known = [found for run in cascades if len(found := outcomes(runs, run)) > 1]

    def share(exit: str, row: Outcome) -> float | None:
        """Return the share of the documents that finish at an exit, in percent. None: the rule has another one."""
        return 100 * float((row.documents.exit == exit).mean()) if exit in row.rule.exits else None

    columns: list[Of[Outcome]] = [
        *of_run(runs, lambda row: row.run),
        Of("rule", "text", 0, lambda row: row.rule.name(row.run.benchmark)),
        Of("first\ncheck", "number", 1, lambda row: share(row.rule.exits[0], row)),
        *(Of(exit.replace("_", "_\n"), "number", 1, functools.partial(share, exit)) for exit in LATER),
        Of("score", "percent", 2, lambda row: runs.share(row.run, row.documents.score)),
        Of("against\nFull RT", "percent", 2, lambda row: _against(runs, row)),
        Of("output\ntokens", "number", 1, lambda row: float(row.documents.tokens.mean())),
        Of("run", "text", 0, lambda row: "yes" if row.is_run else None),
    ]
    notes = [
        "Not in the paper: verify=confidence and verify=both, whose first check asks for the probability that the "
        "large model gave to its short answer; second_check=off; thinker=large. A threshold that was chosen with these "
        "documents looks better than it is: lmms-eval-mai calibrate chooses it with a bound.",
        "Exits in percent; scores are means over documents; output tokens of both models for one document. A rule "
        "that needs more calls than the run has made takes them from Full RT or, with thinker=large, from large R on "
        "the same documents, and is left out without it. They are the same only with greedy decoding and if answers do "
        "not depend on the batch (vLLM's may differ by a token in bfloat16).",
        *(
            f"{benchmark_name(run.benchmark)}, {runs.name(run.method)}: the AUROC of the probability is {area:.1f}%."
            for run in cascades
            if (area := auroc(runs, run)) is not None
        ),
    ]
    title = "The cascade with other first checks and other rules of agreement, recomputed from the traces"
    return table("rules", title, columns, [outcome for found in known for outcome in found], notes)


def auroc(runs: Runs, run: Run) -> float | None:
    """Return how often a right short answer of the large model has a higher probability than a wrong one, in percent;
    50 is chance. None: not known, or all are right, or all wrong."""
    scores = runs.large_short_scores(run)
    known = run.samples.answer_logprob.notna() & scores.notna()
    right = scores[known] >= RIGHT
    if right.nunique() < 2:
        return None
    from sklearn.metrics import roc_auc_score  # takes a second

    return 100 * float(roc_auc_score(right, run.samples.answer_logprob[known]))


LATER: tuple[Exit, ...] = ("agree_think", "transfer", "large_think")
"""The exits after the first check."""


def has_rules(run: Run) -> bool:
    """Return whether a run has the rules of agreement of its benchmark: lmms-eval's own tasks have general ones."""
    return run.benchmark in BENCHMARKS and run.method.variant is not None


def outcomes(runs: Runs, run: Run) -> list[Outcome]:
    """Return what each rule would have done whose calls are known."""
    known = known_answers(runs, run)
    others = [*runs.of("cascade", run.benchmark), *runs.of("own", run.benchmark)]
    same = [one for one in others if one.method.has_calls_of(run.method)]
    made = {Rule(one.method.choices, one.method.min_confidence, one.rules) for one in same}
    agreements = dict.fromkeys([*AGREEMENT.get(run.benchmark, ()), run.rules])
    rules = [Rule(Choices(), None, one) for one in agreements]
    if known.answer_logprob.notna().any():
        thresholds = {
            *THRESHOLDS,
            *(one.threshold for one in made if one.threshold is not None and 0 < one.threshold <= 1),
        }
        verifies: tuple[Verify, ...] = ("confidence", "both")
        each = sorted(thresholds, reverse=True)
        rules += [Rule(Choices(verify), value, run.rules) for verify in verifies for value in each]
    papers = [rule for rule in rules if rule.agreement == run.rules and rule.choices.verify != "both"]
    rules += [replace(rule, choices=replace(rule.choices, second_check="off")) for rule in papers]
    rules += [replace(rule, choices=replace(rule.choices, thinker="large")) for rule in papers]
    decided = ((rule, decide(known, rule, run.benchmark)) for rule in rules)
    return [
        Outcome(run, rule, documents, known.full_rt_score, rule in made)
        for rule, documents in decided
        if documents is not None
    ]


def known_answers(runs: Runs, run: Run) -> pd.DataFrame:
    """Return what is known of each document of a cascade, or of the large model's short answers, from this run, from
    Full RT with the same thinking, and from the large model's own thinking.

    Columns: `answer_logprob` of the large model's short answer; the parsed answers `small`, `large`, `thought`,
    `transferred`, `full_rt` and `large_r`; the scores `large_score`, `transfer_score`, `full_rt_score` and
    `large_r_score`; output tokens by `STAGES`. What no run has is missing.
    """
    samples, alone = run.samples, run.method.mode == "alone"
    moved = samples.exit == "transfer"
    found = pd.DataFrame(
        {
            "answer_logprob": samples.answer_logprob,
            "small": samples.small_answer,
            "large": samples.parsed if alone else samples.large_answer,
            "thought": samples.thought_answer,
            "large_score": samples.score if alone else runs.large_short_scores(run),
            "transferred": samples.parsed.where(moved),
            "transfer_score": samples.score.where(moved),
            **{name: _tokens(run, *stages) for name, stages in STAGES.items()},
        },
        index=samples.index,
    )
    for name, other in (("large_r", runs.large_r(run)), ("full_rt", runs.full_rt(run))):
        # Thinking in one stage does not tell what a second stage would answer, nor the other way round.
        if other is None or other.method.two_stage != run.method.two_stage:
            found[name], found[f"{name}_score"] = None, np.nan
            continue
        theirs = other.samples.reindex(samples.index)
        same = theirs.target == samples.target
        found[name], found[f"{name}_score"] = theirs.parsed.where(same), theirs.score.where(same)
        if name == "large_r":
            found["large_thinking"] = _tokens(other, *STAGES["large_thinking"])
            continue
        new = same & found.thinking.isna()
        found["thought"] = found.thought.where(~new, theirs.thought_answer)
        for missing, stage in ((new, "thinking"), (same & ~moved, "transfer")):
            found[stage] = found[stage].where(~missing, _tokens(other, *STAGES[stage]))
        found["transferred"] = found.transferred.where(moved, found.full_rt)
        found["transfer_score"] = found.transfer_score.where(moved, found.full_rt_score)
    return found


def decide(known: pd.DataFrame, rule: Rule, benchmark: str) -> pd.DataFrame | None:
    """Return `exit`, `answer`, `score` and `tokens` of each document with a rule. None: a call that it needs is
    missing."""
    choices = rule.choices
    if choices.verify != "confidence" and known.small_short.isna().any():
        return None
    first = pd.Series(True, index=known.index)
    if rule.threshold is not None:
        first &= known.answer_logprob.ge(math.log(rule.threshold)) & known.large.notna()
    if choices.verify != "confidence":
        first &= agree(benchmark, known.small, known.large, rule.agreement)
    second = pd.Series(False, index=known.index)
    if "agree_think" in rule.exits:
        second = ~first & agree(benchmark, known.thought, known.large, rule.agreement)
    last = ~first & ~second
    if choices.thinker == "large":
        later, answer, score = known.large_thinking.where(last, 0), known.large_r, known.large_r_score
    else:
        later = known.thinking.where(~first, 0) + known.transfer.where(last, 0)
        answer, score = known.transferred, known.transfer_score
        if choices.second_check == "off":
            answer, score = known.full_rt, known.full_rt_score
    tokens = known.large_short + later
    if choices.verify != "confidence":
        tokens += known.small_short
    scores, answers = known.large_score.where(~last, score), known.large.where(~last, answer)
    if scores.isna().any() or tokens.isna().any():
        return None
    exit = np.select([first, second], [rule.exits[0], "agree_think"], rule.exits[-1])
    return pd.DataFrame({"exit": exit, "answer": answers, "score": scores, "tokens": tokens}, index=known.index)


def _against(runs: Runs, row: Outcome) -> Estimate | None:
    """Return the mean score minus that of Full RT on the same documents, in points."""
    if row.full_rt.isna().any():
        return None
    scores = metrics.plain(row.documents.score), metrics.plain(row.full_rt)
    found = metrics.compare(*scores, "", runs.clusters(row.run), is_tested=False)
    return None if found is None else found.difference


def agree(benchmark: str, small: pd.Series, large: pd.Series, rules: AgreementRules) -> pd.Series:
    """Return whether both answers parse and agree."""
    same, pairs = BENCHMARKS.get(benchmark, GENERIC).agree, zip(small, large, strict=True)
    found = [isinstance(a, str) and isinstance(b, str) and same(a, b, rules) for a, b in pairs]
    return pd.Series(found, index=small.index, dtype=bool)


def _tokens(run: Run, side: Side, stages: Sequence[str]) -> pd.Series:
    """Return the output tokens of each document in these stages. Documents without such a call are left out."""
    calls = run.calls
    calls = calls[(calls.side == side) & calls.stage.isin(stages)]
    return calls.groupby("doc_id").output_tokens.sum()
