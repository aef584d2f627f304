"""All runs of a report by benchmark and method: finding them, their names, scores, costs and comparisons."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

import numpy as np
import pandas as pd

from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.paper.prompts import Variant
from lmms_eval_mai.reports import metrics, paper_numbers
from lmms_eval_mai.reports.folders import Run
from lmms_eval_mai.reports.methods import MODES, NAMES, THINK_E, Method
from lmms_eval_mai.reports.metrics import Clusters, Comparison
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.report import Estimate, Of, Row
from lmms_eval_mai.reports.scoring import score_of

OF_F1 = ("POPE", "On POPE, the difference and p are those of F1.")
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

    def __init__(self, found: Sequence[Run], seconds: Callable[[Run], pd.Series | None] | None = None) -> None:
        """`seconds`: returns the time of each document of a run by profiles of its models."""
        self.gaps: list[str] = []
        self.unused: list[Run] = []
        self.runs: dict[tuple[str, Method], Run] = {}
        self.seconds = seconds
        for run in found:
            self._add(run)
        for run in list(self.runs.values()):
            for derived in short_answers(run):
                self._add(derived)
        self._clusters = {name: _clusters(self.of_benchmark(name)) for name in self.benchmarks()}
        self._scores = functools.cache(lambda run: metrics.run_score(run, self.clusters(run)))
        self._comparisons = functools.cache(self._compare)
        self._different: set[frozenset[Run]] = set()
        self._check_totals()

    def _add(self, run: Run) -> None:
        """Add a run. Of two runs of one method, the one with more documents is used, else the newer one."""
        key = run.benchmark, run.method
        used, other = run, self.runs.get(key)
        if other is not None and _rank(other) > _rank(run):
            used, other = other, run
        self.runs[key] = used
        if other is not None and not other.derived:
            self.unused.append(other)
            same = "has the short answers of" if used.derived else "is a run of"
            self.gaps.append(
                f"{other.file}: {other.task} is not used, because {used.file} {same} the same method "
                f"({self.name(run.method)}) on {used.documents} documents."
            )

    def _check_totals(self) -> None:
        """Compare the scores of the documents with lmms-eval's totals, and tell which runs are on a part of their data
        set."""
        for run in self.runs.values():
            total, found = metrics.main_metric(run), self.score(run)
            is_one = not run.derived and len(run.samples) == run.documents
            if total and found and is_one and found.low is not None and abs(found.value - total[0]) > 0.006:
                self.gaps.append(
                    f"{run.file}: the samples of {run.task} give a score of {found.value:.2f}, and the results file "
                    f"has {total[0]:.2f}. The tables use the samples."
                )
        made = [run for run in self.runs.values() if not run.derived and run.number < run.original]
        for benchmark, number, original in dict.fromkeys((run.benchmark, run.number, run.original) for run in made):
            name = benchmark_name(benchmark)
            self.gaps.append(f"{name}: there are runs on only {number} of {original} documents (--limit).")

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
            same = {one.method.verify for one in self.same_calls(run)}
            if run.method.has_second_check and (run.method.verify == "agreement" or "agreement" not in same):
                yield run

    def same_calls(self, run: Run) -> list[Run]:
        """Return the cascades of a pair whose calls are the same where they make them, this one included."""
        same = (one for one in self.of("cascade", run.benchmark) if one.method.has_calls_of(run.method))
        return [one for one in same if one.method.has_second_check or one is run]

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
        lmms-eval task: 8B, own prompt or MAI 8B + 2B-R, own prompt."""
        options = given_options(method)
        own = ", own prompt" if method.variant is None else ""
        more = f" ({', '.join(options)})" if options else ""
        if method.mode == "alone":
            return f"{self.label(method.model)}{own or f'-{method.prompt}'}{more}"
        if method.mode == "own":
            return f"{NAMES['own']} {self.label(method.model)}-{method.prompt}{own}{more}"
        pair = f"{self.label(method.model)} + {self.label(method.small)}-{method.prompt}{own}"
        return f"{NAMES[method.mode]} {pair}{more}"

    def short_names(self) -> tuple[dict[str, str], tuple[str, ...]]:
        """Return a short name of each method by its name, and the lines that define the short names: options have a
        letter, and models without a name of the paper are small and large if all cascades have the same two."""
        methods = list(dict.fromkeys(method for _, method in self.runs))
        pairs = {(method.small, method.model) for method in methods if method.small}
        models = {self.label(model): model for method in methods for model in (method.model, method.small) if model}
        legend = [f"{label} = {model}" for label, model in models.items() if label != model]
        roles: dict[str, str] = {}
        if len(pairs) == 1 and not any(paper_numbers.family(model) for model in next(iter(pairs))):
            roles = {self.label(model): side for side, model in zip(SIDES, next(iter(pairs)), strict=True)}
            legend = [f"{side} = {models[label]}" for label, side in roles.items()]
        letters: dict[str, str] = {}
        names = {}
        for method in methods:
            name, options = self.name(method), ", ".join(given_options(method))
            short = name.removesuffix(f" ({options})")
            for label, side in roles.items():
                if method.mode == "alone" and self.label(method.model) == label:
                    short = short.replace(label, side, 1)
            if roles and method.mode != "alone":
                thinking = "" if method.prompt == "R" else f" {method.prompt}"
                short = NAMES[method.mode] + thinking
                short += ", own prompt" if method.variant is None else ""
            if options:
                short += f" [{letters.setdefault(options, chr(ord('a') + len(letters) % 26))}]"
            names[name] = short
        return names, (*legend, *(f"[{letter}] = {options}" for options, letter in letters.items()))

    # --- scores, costs and comparisons ---

    def clusters(self, run: Run) -> Clusters | None:
        """Return the cluster of each document of a benchmark. None: no two documents share an image."""
        return self._clusters[run.benchmark]

    def resampling(self, benchmark: str) -> str | None:
        """Return a sentence that tells what intervals and p of a benchmark resample. None: single documents, and no
        reason to doubt that they are independent of each other."""
        clusters, name = self._clusters.get(benchmark), benchmark_name(benchmark)
        if clusters is not None:
            return (
                f"{name}: {len(clusters):,} documents in {clusters.nunique():,} clusters that share an image or a "
                "question. Intervals and p resample whole clusters."
            )
        is_known = any(run.samples.images.notna().all() for run in self.of_benchmark(benchmark) if len(run.samples))
        if benchmark in SHARED_IMAGES and not is_known:
            return (
                f"{name}: documents of this benchmark share images, and these runs do not tell which. Intervals and p "
                "resample single documents, so they are too narrow. Runs of this version have the hashes."
            )
        return None

    def score(self, run: Run | None, paper: float | None = None) -> Estimate | None:
        """Return the score of a run in percent, with the benchmark's metric. None: no run, or no score."""
        return None if run is None else metrics.with_paper(self._scores(run), paper)

    def share(self, run: Run, found: pd.Series, paper: float | None = None) -> Estimate | None:
        """Return the share of true values in percent. `found`: one value for each answer of the run, or of some. None
        if there are none."""
        return metrics.with_paper(metrics.score(metrics.plain(found), "", self.clusters(run)), paper)

    def accuracy(self, run: Run, samples: pd.DataFrame) -> Estimate | None:
        """Return the mean score of samples in percent, on POPE and MMBench too. None if there are none."""
        return self.share(run, samples.score.fillna(0.0))

    def common(self, *runs: Run) -> list[pd.DataFrame]:
        """Return the samples of the documents that all runs have a score for, in the same order. A sentence is added to
        the gaps if one of two runs has other documents too."""
        keys = [_documents(run.samples[run.samples.score.notna()]) for run in runs]
        wanted = {doc_id for doc_id, _ in set.intersection(*keys)}
        numbers = [run.samples.index.nunique() for run in runs]
        is_new = len(runs) == 2 and frozenset(runs) not in self._different
        if is_new and all(numbers) and {len(wanted)} != set(numbers):
            self._different.add(frozenset(runs))
            first, second = runs
            self.gaps.append(
                f"{self.name(first.method)} and {self.name(second.method)} on {benchmark_name(first.benchmark)} have "
                f"{numbers[0]} and {numbers[1]} documents; they are compared on the {len(wanted)} that both have."
            )
        return [run.samples[run.samples.index.isin(wanted)] for run in runs]

    def large_short_scores(self, run: Run) -> pd.Series:
        """Return the scores of the large model's short answers inside a cascade, in the order of its samples.

        On a benchmark whose scorer is not known, they are those of the large model's own run; nan where there is
        none."""
        found = short_scores(run, "large")
        other = self.short(run, "large")
        if other is not None and found.isna().any():
            scores = other.samples.score.groupby(level=0).mean()
            found = found.fillna(pd.Series(scores.reindex(found.index).to_numpy(), index=found.index))
        return found

    def _compare(self, first: Run, second: Run) -> Comparison | None:
        a, b = self.common(first, second)
        return metrics.compare(a, b, first.benchmark, self.clusters(first))

    def compare(self, first: Run | None, second: Run | None) -> Comparison | None:
        """Compare two runs on their common documents. None: no common documents."""
        return None if first is None or second is None else self._comparisons(first, second)


def given_options(method: Method) -> list[str]:
    """Return the options of a method that its name shows: `think=E` is the prompt of another task's thinking."""
    return [option for option in method.options if method.variant is not None or option != THINK_E]


def order(model: str) -> float:
    """Return a number that sorts models by size: the billions of parameters in the paper's name."""
    known = paper_numbers.family(model)
    return float(known[1].removesuffix("B")) if known else 1e6


def _rank(run: Run) -> tuple[int, bool, bool, int, str]:
    """Return what decides between two runs of one method: the larger one is used."""
    return run.samples.index.nunique(), run.ours, not run.derived, run.number, run.file.name


def _documents(samples: pd.DataFrame) -> set[tuple[int, str]]:
    return set(zip(samples.index, samples.target, strict=True))


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
    if run.method.mode != "cascade" or not len(samples) or samples.agree.isna().any():
        return
    for side in SIDES:
        calls = run.calls[(run.calls.side == side) & run.calls.stage.isin(("short", "task"))]
        tokens = calls.groupby(["doc_id", "repeat"]).output_tokens.sum()
        parsed, scores = samples[f"{side}_answer"], short_scores(run, side)
        if scores.notna().all():
            derived = samples.assign(
                score=scores,
                predicted=parsed.where(parsed.notna(), "other").where(samples.predicted.notna(), None),
                exit=side,
                readable=parsed.notna(),
                parsed=parsed,
                output_tokens=tokens.reindex(pd.MultiIndex.from_arrays([samples.index, samples.repeat])).to_numpy(),
                **dict.fromkeys(("small_answer", "large_answer", "thought_answer", "agree", "agree_think")),
            )
            method = run.method.short(side)
            yield replace(
                run,
                method=method,
                samples=derived,
                calls=calls,
                metrics={},
                wall_s=None,
                derived=True,
            )


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
