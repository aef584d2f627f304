"""All runs of a report by benchmark and method: finding them, their names, scores, costs and comparisons."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

import numpy as np
import pandas as pd

from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.paper.confidence import Choices
from lmms_eval_mai.paper.prompts import Variant
from lmms_eval_mai.reports import metrics, paper_numbers
from lmms_eval_mai.reports.folders import Run
from lmms_eval_mai.reports.methods import MODES, NAMES, Method
from lmms_eval_mai.reports.metrics import Clusters, Comparison
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.report import Estimate, Of, Row
from lmms_eval_mai.reports.scoring import score_of

OF_F1 = "On POPE, the difference and p are those of F1."
"""The note of a table with comparisons of scores."""
SHARED_IMAGES = ("pope", "chartqa", "infovqa_val", "mmbench_en_dev")
"""Benchmarks whose documents share images."""


def of_run(runs: "Runs", run: Callable[[Row], Run], name: str = "method") -> list[Of[Row]]:
    """Return the first columns of a table. `run`: returns the run of a row."""
    return [
        Of("benchmark", "text", 0, lambda row: benchmark_name(run(row).benchmark)),
        Of(name, "text", 0, lambda row: runs.name(run(row).method)),
    ]


class Runs:
    """The run of each benchmark and method, and sentences about the others."""

    def __init__(self, found: Sequence[Run]) -> None:
        self.gaps: list[str] = []
        self.runs: dict[tuple[str, Method], Run] = {}
        in_order = sorted(found, key=lambda run: (run.documents, run.file.name), reverse=True)
        for run in in_order:  # of several runs of one method, that with the most documents is used, else the newest
            used = self.runs.setdefault((run.benchmark, run.method), run)
            if used is not run:
                self.gaps.append(f"{run.file}: {run.task} is not used: {used.file} is a run of the same method.")
        self.unused = [run for run in found if run not in self.runs.values()]
        for run in in_order:
            for derived in short_answers(run) if run not in self.unused else ():
                self.runs.setdefault((run.benchmark, derived.method), derived)
        self._clusters = {name: _clusters(self.of_benchmark(name)) for name in self.benchmarks()}
        self._scores = functools.cache(self._score)
        self._comparisons = functools.cache(self._compare)

    # --- finding runs ---

    def get(self, benchmark: str, method: Method) -> Run | None:
        """Return the run of a method, or None."""
        return self.runs.get((benchmark, method))

    def benchmarks(self) -> list[str]:
        """Return the benchmarks of the runs, the paper's first and in its order."""
        known = list(paper_numbers.load()["benchmarks"])
        found = dict.fromkeys(benchmark for benchmark, _ in self.runs)
        return sorted(found, key=lambda name: (known.index(name) if name in known else len(known), name))

    def of(self, mode: str, benchmark: str | None = None) -> Iterator[Run]:
        """Yield the runs of a mode, sorted by benchmark and method."""
        for name in self.benchmarks() if benchmark is None else [benchmark]:
            found = [(method, run) for (of, method), run in self.runs.items() if of == name and method.mode == mode]
            for _, run in sorted(found, key=lambda one: (order(one[0].model), one[0].model, str(one[0]))):
                yield run

    def of_benchmark(self, benchmark: str) -> list[Run]:
        """Return all runs on a benchmark: single models, Full RT, then the cascades."""
        return [run for mode in MODES for run in self.of(mode, benchmark)]

    def short(self, run: Run, side: Side) -> Run | None:
        """Return the run of one model of a pair with S, or with the own prompt of another task."""
        return self.get(run.benchmark, run.method.short(side))

    def full_rt(self, run: Run) -> Run | None:
        """Return Full RT of the pair of a cascade with the same thinking; of the large model's short answers, that with
        this model."""
        if run.method.mode == "alone":
            others = self.of("transfer", run.benchmark)
            return next((other for other in others if other.method.model == run.method.model), None)
        return self.get(run.benchmark, run.method.full_rt())

    def large_r(self, run: Run) -> Run | None:
        """Return the large model of a cascade with the prompt of the thinking, in one stage or else in two; of the
        large model's short answers, that with R or else E."""
        variants: tuple[Variant | None, ...] = (run.method.variant,)
        if run.method.mode == "alone":
            variants = ("R", "E")
        methods = (run.method.alone("large", variant, two) for variant in variants for two in (False, True))
        return next((found for method in methods if (found := self.get(run.benchmark, method))), None)

    def traced(self, is_scored: bool = True) -> Iterator[Run]:
        """Yield the cascades whose documents have a trace, and a score if `is_scored`."""
        for run in self.of("cascade"):
            samples = run.samples
            if len(samples) and samples.exit.notna().all() and (samples.score.notna().all() or not is_scored):
                yield run

    def first_checks(self, is_scored: bool = True) -> Iterator[Run]:
        """Yield the cascades that tell what other first checks would do. Where one has the paper's rule, it has all
        calls of those with another one."""
        for run in self.traced(is_scored):
            same = (one.method for one in self.of("cascade", run.benchmark) if one.method.has_calls_of(run.method))
            choices, has_papers = run.method.choices, any(one.choices == Choices() for one in same)
            if choices.second_check == "on" and (choices.verify == "agreement" or not has_papers):
                yield run

    # --- names ---

    def label(self, model: str) -> str:
        """Return a short name of a model: the paper's, or the last part of its path or address."""
        known = paper_numbers.family(model)
        if known is not None:
            return known[1]
        name = PurePath(model.rstrip("/")).name.removesuffix(".jsonl") or model
        others = {one for _, method in self.runs for one in (method.model, method.small) if one and one != model}
        same = any(PurePath(one).name.removesuffix(".jsonl") == name for one in others)
        return "/".join([*PurePath(model).parts[-2:-1], name]) if same or name in SIDES else name

    def name(self, method: Method) -> str:
        """Return the paper's name of a method, such as 8B-R(S2), Full RT 8B + 2B-R or MAI 8B + 2B-R. On another
        lmms-eval task: 8B, own prompt or MAI 8B + 2B, own prompt."""
        mode = "" if method.mode == "alone" else f"{NAMES[method.mode]} "
        small = f" + {self.label(method.small)}" if method.mode in ("transfer", "cascade") else ""
        options = f" ({', '.join(method.options)})" if method.options else ""
        return f"{mode}{self.label(method.model)}{small}{'-' if method.variant else ', '}{method.prompt}{options}"

    def short_names(self) -> tuple[dict[str, str], tuple[str, ...]]:
        """Return a short name of each method by its name, and the lines that define the short names: options have a
        letter, and models without a name of the paper are small and large if all cascades have the same two."""
        methods = list(dict.fromkeys(method for _, method in self.runs))
        models = dict.fromkeys(model for method in methods for model in (method.model, method.small) if model)
        pairs = {(method.small, method.model) for method in methods if method.small}
        shown = {model: self.label(model) for model in models}
        if len(pairs) == 1 and not any(map(paper_numbers.family, *pairs)):
            shown |= dict(zip(*pairs, SIDES, strict=True))
        letters: dict[tuple[str, ...], str] = {}
        names = {}
        for method in methods:
            short = self.name(replace(method, options=()))
            for model in (method.model, method.small):
                short = short.replace(self.label(model), shown.get(model, ""), 1) if model else short
            short = short.replace(" large + small-R", "").replace(" large-R", "")
            if options := (*method.options, *["thinker=large"] * (method.mode == "own")):
                letter = letters.setdefault(options, chr(ord("a") + len(letters) % 26))
                short += f" [{letter}]"
            names[self.name(method)] = short
        legend = [f"{label} = {model}" for model, label in shown.items() if label != model]
        return names, (*legend, *(f"[{letter}] = {', '.join(options)}" for options, letter in letters.items()))

    # --- scores, costs and comparisons ---

    def clusters(self, run: Run) -> Clusters | None:
        """Return the cluster of each document of a benchmark. None: no two documents share an image."""
        return self._clusters[run.benchmark]

    def resampling(self, benchmark: str) -> str | None:
        """Return a sentence that tells what intervals and p of a benchmark resample. None: single documents, and no
        reason to doubt that they are independent of each other."""
        clusters, name = self._clusters[benchmark], benchmark_name(benchmark)
        if clusters is not None:
            return (
                f"{name}: {len(clusters):,} documents in {clusters.nunique():,} clusters that share an image or a "
                "question. Intervals and p resample whole clusters."
            )
        is_known = any(run.samples.images.notna().all() for run in self.of_benchmark(benchmark))
        if benchmark in SHARED_IMAGES and not is_known:
            return (
                f"{name}: documents of this benchmark share images, and these runs do not tell which. Intervals and p "
                "resample single documents, so they are too narrow. Runs of this version have the hashes."
            )
        return None

    def score(self, run: Run | None, paper: float | None = None) -> Estimate | None:
        """Return the score of a run in percent, with the benchmark's metric. None: no run, or no score."""
        return None if run is None else metrics.with_paper(self._scores(run), paper)

    def _score(self, run: Run) -> Estimate | None:
        is_known = run.samples.score.notna().all()
        return metrics.score(run.samples, run.benchmark, self.clusters(run)) if is_known else None

    def share(self, run: Run, found: pd.Series, paper: float | None = None) -> Estimate | None:
        """Return the share of true values in percent. `found`: one value for each answer of the run, or of some. None
        if there are none."""
        return metrics.with_paper(metrics.score(metrics.plain(found), "", self.clusters(run)), paper)

    def common(self, first: Run, second: Run) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the samples of the documents that both runs have a score for, and the same gold answer."""
        both = first.samples.index.intersection(second.samples.index)
        a, b = first.samples.loc[both], second.samples.loc[both]
        same = a.score.notna() & b.score.notna() & (a.target == b.target)
        return a[same], b[same]

    def large_short_scores(self, run: Run) -> pd.Series:
        """Return the scores of the large model's short answers inside a cascade, in the order of its samples.

        On a benchmark whose scorer is not known, they are those of the large model's own run; nan where there is
        none."""
        found = short_scores(run, "large")
        other = self.short(run, "large")
        return found if other is None else found.fillna(other.samples.score)

    def _compare(self, first: Run, second: Run) -> Comparison | None:
        a, b = self.common(first, second)
        return metrics.compare(a, b, first.benchmark, self.clusters(first))

    def compare(self, first: Run | None, second: Run | None) -> Comparison | None:
        """Compare two runs on their common documents. None: no common documents."""
        return None if first is None or second is None else self._comparisons(first, second)


def order(model: str) -> float:
    """Return a number that sorts models by size: the billions of parameters in the paper's name."""
    known = paper_numbers.family(model)
    return float(known[1].removesuffix("B")) if known else 1e6


def _clusters(runs: Sequence[Run]) -> Clusters | None:
    """Return the cluster of each document of one benchmark: documents that are joined by common images, or by being
    rotations of one question. None: each document is a cluster."""
    samples = pd.concat([run.samples[["images", "group"]] for run in runs])
    links = pd.concat([samples.images.explode(), samples.group]).dropna()
    links = links.groupby(level=0).unique().explode()
    if links.is_unique:
        return None
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    documents = samples.index.unique()
    joined, names = pd.factorize(links)
    ends = documents.get_indexer(links.index), len(documents) + joined
    size = len(documents) + len(names)
    _, labels = connected_components(coo_array((np.ones(len(links)), ends), shape=(size, size)), directed=False)
    numbers, distinct = pd.factorize(labels[: len(documents)])
    return pd.Series(numbers, index=documents) if len(distinct) < len(documents) else None


def short_answers(run: Run) -> Iterator[Run]:
    """Yield the runs that are inside a cascade: both models with the Simple prompt. Their answers are scored here."""
    samples = run.samples
    if run.method.mode != "cascade" or samples.agree.isna().any():
        return
    for side in SIDES:
        calls = run.calls[(run.calls.side == side) & run.calls.stage.isin(("short", "task"))]
        parsed, scores = samples[f"{side}_answer"], short_scores(run, side)
        if len(samples) and scores.notna().all():
            derived = samples.assign(
                score=scores,
                predicted=parsed.where(parsed.notna(), "other").where(samples.predicted.notna(), None),
                exit=side,
                readable=parsed.notna(),
                parsed=parsed,
                output_tokens=calls.groupby("doc_id").output_tokens.sum(),
                **dict.fromkeys(("small_answer", "large_answer", "thought_answer", "agree", "agree_think")),
            )
            short = run.method.short(side)
            yield replace(run, method=short, samples=derived, calls=calls, wall_s=None, derived=True)


def short_scores(run: Run, side: Side) -> pd.Series:
    """Return the scores of the short answers of one model inside a cascade, in the order of its samples; nan if the
    benchmark's scorer is not known, or if no check has parsed the answer."""
    samples = run.samples
    found = [score_of(run.benchmark, *one) for one in zip(samples[f"{side}_answer"], samples.target, strict=True)]
    scores = pd.Series(found, index=samples.index, dtype=float)
    if side == "large":  # where the models agree, its short answer is the final answer
        scores = scores.where(samples.agree.notna() | samples.agree_think.notna())
        return scores.where(~samples.exit.isin(("agree_short", "confident", "agree_think")), samples.score)
    return scores
