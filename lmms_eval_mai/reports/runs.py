"""All runs of a report by benchmark and setup: finding them, their names, scores, costs and comparisons."""

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import PurePath

import numpy as np
import pandas as pd

from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.method.benchmarks import benchmark_of
from lmms_eval_mai.method.methods import FULL_RT, MAI, Ask, Method, Stop
from lmms_eval_mai.reports import metrics, paper_numbers
from lmms_eval_mai.reports.folders import Run
from lmms_eval_mai.reports.metrics import Clusters, Comparison
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.replay import Known, calls_of_run, derived, known_calls, replay
from lmms_eval_mai.reports.report import Column, Estimate, Row
from lmms_eval_mai.reports.setups import KINDS, NAMES, Kind, Setup

OF_F1 = "On POPE, the difference and p are those of F1."
"""The note of a table with comparisons of scores."""


def name_columns(runs: "Runs", run: Callable[[Row], Run], name: str = "method") -> list[Column[Row]]:
    """Return the first columns of a table. `run`: returns the run of a row."""
    return [
        Column("benchmark", "text", 0, lambda row: benchmark_name(run(row).benchmark)),
        Column(name, "text", 0, lambda row: runs.name(run(row).setup)),
    ]


class Runs:
    """The run of each benchmark and setup, and sentences about the others."""

    def __init__(self, found: Sequence[Run]) -> None:
        self.gaps: list[str] = []
        self.runs: dict[tuple[str, Setup], Run] = {}
        in_order = sorted(found, key=lambda run: (run.documents, run.file.name), reverse=True)
        for run in in_order:  # of several runs of one setup, that with the most documents is used, else the newest
            used = self.runs.setdefault((run.benchmark, run.setup), run)
            if used is not run:
                self.gaps.append(
                    f"{run.file}: {run.task} is not used: {used.file} is a run of the same method, models and options."
                )
        self.unused = [run for run in found if run not in self.runs.values()]
        for run in in_order:
            for one in short_answers(run) if run not in self.unused else ():
                self.runs.setdefault((run.benchmark, one.setup), one)
        self._clusters = {name: _clusters(self.of_benchmark(name)) for name in self.benchmarks()}
        self.known = functools.cache(self._known)
        self._scores = functools.cache(self._score)
        self._comparisons = functools.cache(self._compare)

    # --- finding runs ---

    def get(self, benchmark: str, setup: Setup) -> Run | None:
        """Return the run of a setup, or None."""
        return self.runs.get((benchmark, setup))

    def add(self, run: Run) -> None:
        """Add the result of a replay, unless there is a run of the same setup."""
        self.runs.setdefault((run.benchmark, run.setup), run)

    def benchmarks(self) -> list[str]:
        """Return the benchmarks of the runs, the paper's first and in its order."""
        known = list(paper_numbers.load()["benchmarks"])
        found = dict.fromkeys(benchmark for benchmark, _ in self.runs)
        return sorted(found, key=lambda name: (known.index(name) if name in known else len(known), name))

    def of(self, kind: Kind, benchmark: str | None = None) -> Iterator[Run]:
        """Yield the runs of a kind of method, sorted by benchmark, model and setup."""
        for name in self.benchmarks() if benchmark is None else [benchmark]:
            found = [(setup, run) for (of, setup), run in self.runs.items() if of == name and setup.kind == kind]
            for _, run in sorted(found, key=lambda one: (order(one[0].model), one[0].model, self.name(one[0]))):
                yield run

    def of_benchmark(self, benchmark: str) -> list[Run]:
        """Return all runs on a benchmark: single models, Full RT, then the cascades."""
        return [run for kind in KINDS for run in self.of(kind, benchmark)]

    def short(self, run: Run, side: Side) -> Run | None:
        """Return the run of one model of a pair with S, or with the own prompt of another task."""
        return self.get(run.benchmark, run.setup.short(side))

    def of_full_rt(self, benchmark: str | None = None) -> list[Run]:
        """Return the runs of the paper's Full RT. Its kind has other methods without a condition, too."""
        return [run for run in self.of("full_rt", benchmark) if run.setup.method == FULL_RT]

    def full_rt(self, run: Run) -> Run | None:
        """Return Full RT of the pair of a cascade with the same thinking; of the large model's short answers, that with
        this model."""
        if run.setup.kind == "alone":
            others = self.of_full_rt(run.benchmark)
            return next((other for other in others if other.setup.model == run.setup.model), None)
        return self.get(run.benchmark, run.setup.full_rt())

    def traced(self, is_scored: bool = True) -> Iterator[Run]:
        """Yield the cascades whose documents have a trace, and a score if `is_scored`."""
        for run in self.of("cascade"):
            samples = run.samples
            if len(samples) and samples.exit.notna().all() and (samples.score.notna().all() or not is_scored):
                yield run

    def bases(self, is_scored: bool = True) -> Iterator[Run]:
        """Yield a run for each pair, prompt and options: with its calls and those of other runs on its documents, the
        result of other methods is known. MAI comes first, which has the short answers of both models."""
        done = set()
        for run in sorted(self.traced(is_scored), key=lambda run: run.setup.method != MAI):
            setup = run.setup
            key = (run.benchmark, setup.full_rt(), setup.two_stage, run.rules)
            if key not in done:
                done.add(key)
                yield run

    def _known(self, run: Run) -> Known:
        """Return all calls on the documents of a run with its models."""
        small = run.setup.small
        if not small and (full_rt := self.full_rt(run)) is not None:
            small = full_rt.setup.small
        others = (one for one in self.of_benchmark(run.benchmark) if one is not run and one.ours and not one.derived)
        return known_calls(run, others, small, run.setup.model)

    # --- names ---

    def label(self, model: str) -> str:
        """Return a short name of a model: the paper's, or the last part of its path or address."""
        known = paper_numbers.family(model)
        if known is not None:
            return known[1]
        name = PurePath(model.rstrip("/")).name.removesuffix(".jsonl") or model
        others = {one for _, setup in self.runs for one in (setup.model, setup.small) if one and one != model}
        same = any(PurePath(one).name.removesuffix(".jsonl") == name for one in others)
        return "/".join([*PurePath(model).parts[-2:-1], name]) if same or name in SIDES else name

    def name(self, setup: Setup, options: Collection[str] | None = None) -> str:
        """Return the paper's name of a setup, such as 8B-R(S2), Full RT 8B + 2B-R or MAI 8B + 2B-R. On another
        lmms-eval task: 8B, own prompt or MAI 8B + 2B, own prompt. `options`: those to show; None: all."""
        method = "" if setup.kind == "alone" else f"{NAMES.get(setup.method, setup.method.name)} "
        small = f" + {self.label(setup.small)}" if setup.small else ""
        given = [one for one in setup.options if options is None or one in options]
        shown = f" ({', '.join(given)})" if given else ""
        has_prompt = setup.kind == "alone" or setup.method.thinking
        prompt = f"{'-' if setup.variant else ', '}{setup.prompt}" if has_prompt else ""
        return f"{method}{self.label(setup.model)}{small}{prompt}{shown}"

    def short_names(self) -> tuple[dict[str, str], tuple[str, ...]]:
        """Return a short name of each method by its name, and the lines that define the short names: options have a
        letter, and models without a name of the paper are small and large if all cascades have the same two."""
        setups = list(dict.fromkeys(setup for _, setup in self.runs))
        models = dict.fromkeys(model for setup in setups for model in (setup.model, setup.small) if model)
        pairs = {(setup.small, setup.model) for setup in setups if setup.small}
        shown = {model: self.label(model) for model in models}
        if len(pairs) == 1 and not any(map(paper_numbers.family, *pairs)):
            shown |= dict(zip(*pairs, SIDES, strict=True))
        common = set.intersection(*(set(setup.options) for setup in setups)) if len(setups) > 1 else set()
        letters: dict[tuple[str, ...], str] = {}
        names = {}
        for setup in setups:
            short = self.name(setup, ())
            for model in (setup.model, setup.small):
                short = short.replace(self.label(model), shown.get(model, ""), 1) if model else short
            short = short.replace(" large + small-R", "").replace(" large-R", "").removesuffix(" large + small")
            if options := tuple(one for one in setup.options if one not in common):
                short += f" [{letters.setdefault(options, letter(len(letters)))}]"
            names[self.name(setup)] = short
        legend = [f"{label} = {model}" for model, label in shown.items() if label != model]
        legend += [f"{', '.join(sorted(common))}: of all methods"] if common else []
        return names, (*legend, *(f"[{one}] = {', '.join(options)}" for options, one in letters.items()))

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
        if benchmark_of(benchmark).shares_images and not is_known:
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
        """Return the scores of the large model's short answers on the documents of a run, in the order of its samples;
        nan where they are not known."""
        name = "large.simple" if run.setup.variant else "large.task"
        found = self.known(run).get(name)
        other = self.short(run, "large")
        scores = pd.Series(np.nan, index=run.samples.index) if found is None else found.score
        return scores if other is None else scores.fillna(self.common(run, other)[1].score)

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
    """Yield the runs that are inside another one: each model with the Simple prompt. Their answers are scored here."""
    if run.setup.kind == "alone" or not run.ours:
        return
    own = calls_of_run(run)
    known = {name: frame.reindex(run.samples.index) for name, frame in own.items()}
    for side in SIDES:
        method = Method(side, (Ask(side, "simple"), Stop(side, f"{side}.simple")))
        setup = run.setup.short(side)
        if known and (made := replay(method, known, setup, run.benchmark, run.rules, None)) is not None and len(made):
            yield derived(run, method, setup, made, known)


def letter(number: int) -> str:
    """Return a to z, then aa to zz and so on."""
    return (letter(number // 26 - 1) if number >= 26 else "") + chr(ord("a") + number % 26)
