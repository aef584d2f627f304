"""All runs of a report by benchmark and setup: finding them, their names, scores, costs and comparisons."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath

import numpy as np
import pandas as pd

from lmms_eval_mai.analysis import paper_numbers
from lmms_eval_mai.analysis.intervals import Estimate
from lmms_eval_mai.analysis.paper_numbers import benchmark_name
from lmms_eval_mai.analysis.report import Column, Row
from lmms_eval_mai.analysis.runs import metrics
from lmms_eval_mai.analysis.runs.folders import FinishedRun, read_runs
from lmms_eval_mai.analysis.runs.metrics import Clusters, Comparison
from lmms_eval_mai.analysis.runs.replay import joined_calls, named_calls, names_of_calls, replay
from lmms_eval_mai.analysis.runs.setups import FAMILIES, NAMES, MethodFamily, Options, Setup
from lmms_eval_mai.contract import SIDES, Side, Variant
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.methods import FULL_RT, MAI, Ask, Method, Stop


def name_columns(runs: "Runs", run: Callable[[Row], FinishedRun], name: str = "method") -> list[Column[Row]]:
    """Return the first columns of a table. `run`: returns the run of a row."""
    return [
        Column("benchmark", "text", 0, lambda row: benchmark_name(run(row).benchmark)),
        Column(name, "text", 0, lambda row: runs.name(run(row).setup)),
    ]


class Runs:
    """The run of each benchmark and setup, and sentences about the others."""

    @classmethod
    def read(cls, folders: Sequence[Path]) -> "Runs":
        """Read the runs in the folders. Raises `ArgumentError` if a folder does not exist, or if there is no run."""
        found, gaps = read_runs(folders)
        if not found:
            raise ArgumentError(
                f"{', '.join(map(str, folders))}: there is no run of lmms-eval. Run lmms-eval with --output_path and "
                f"--log_samples, and give that path. {' '.join(gaps)}"
            )
        return cls(found, gaps)

    def __init__(self, found: Sequence[FinishedRun], gaps: Sequence[str] = ()) -> None:
        self.gaps = list(gaps)
        self.runs: dict[tuple[str, Setup], FinishedRun] = {}
        in_order = sorted(found, key=lambda run: (run.documents, run.file.name), reverse=True)
        for run in in_order:  # of several runs of one setup, that with the most documents is used, else the newest
            used = self.runs.setdefault((run.benchmark, run.setup), run)
            if used is not run:
                self.gaps.append(
                    f"{run.file}: {run.task} is not used: {used.file} is a run of the same method, models and options."
                )
        self.unused = [run for run in found if run not in self.runs.values()]
        for run in in_order:
            for short_run in short_answer_replays(run) if run not in self.unused else ():
                self.add(short_run)
        self._base = functools.cache(self._base_name)
        self.roles = _roles([run for run in found if run.ours])
        self._clusters = {name: _clusters(self.select(benchmark=name)) for name in self.benchmarks()}
        self.calls = functools.cache(self._calls)
        self.score = functools.cache(self._score)
        self.compare = functools.cache(self._compare)

    # --- finding runs ---

    def get(self, benchmark: str, setup: Setup) -> FinishedRun | None:
        return self.runs.get((benchmark, setup))

    def add(self, run: FinishedRun) -> None:
        """Add the result of a replay, unless there is a run of the same setup."""
        self.runs.setdefault((run.benchmark, run.setup), run)

    def benchmarks(self) -> list[str]:
        """Return the benchmarks of the runs, the paper's first and in its order."""
        papers = list(paper_numbers.load()["benchmarks"])
        names = {benchmark for benchmark, _ in self.runs}
        return sorted(names, key=lambda name: (papers.index(name) if name in papers else len(papers), name))

    def select(self, *families: MethodFamily, benchmark: str = "") -> list[FinishedRun]:
        """Return the runs of these families on a benchmark, or all, sorted by benchmark, family, model and setup."""
        benchmarks, chosen = self.benchmarks(), families or FAMILIES

        def key(run: FinishedRun) -> tuple[int, int, float, str, str]:
            setup = run.setup
            papers = paper_numbers.family(setup.model)
            size = float(papers[1].removesuffix("B")) if papers else math.inf
            family = FAMILIES.index(setup.family)
            return benchmarks.index(run.benchmark), family, size, setup.model, self.name(setup)

        runs = (run for run in self.runs.values() if run.setup.family in chosen and benchmark in ("", run.benchmark))
        return sorted(runs, key=key)

    def stopping(self, benchmark: str) -> list[FinishedRun]:
        """Return the runs of methods that may stop early, those of cascades first."""
        return [run for family in ("cascade", "solo") for run in self.select(family, benchmark=benchmark)]

    def full_rt(self, run: FinishedRun) -> FinishedRun | None:
        """Return Full RT of the pair of a cascade with the same thinking; of the large model's short answers, that with
        this model."""
        if run.setup.family != "alone":
            return self.get(run.benchmark, run.setup.full_rt())
        named = FULL_RT, run.setup.model
        runs = self.select("full_rt", benchmark=run.benchmark)
        return next((other for other in runs if (other.setup.method, other.setup.model) == named), None)

    def pair(self, run: FinishedRun) -> tuple[str, str]:
        """Return the small and the large model. The small one is empty if neither the run nor Full RT has one."""
        full_rt = self.full_rt(run)
        return run.setup.small or (full_rt.setup.small if full_rt else ""), run.setup.model

    def replayable(self, *families: MethodFamily, is_scored: bool) -> list[FinishedRun]:
        """Return the runs on whose documents other methods are replayed. There is one for each pair, thinking and
        transfer; of cascades, also one for each rule of agreement. A family is used only for pairs that no earlier one
        has. `is_scored`: whether all documents need a score."""

        def rank(run: FinishedRun) -> tuple[bool, bool]:
            """MAI has both short answers. Few methods use the large model's answer to E."""
            return run.setup.method != MAI, run.setup.family == "alone" and run.setup.variant == "E"

        found: list[FinishedRun] = []
        for family in families:
            for run in sorted(self.select(family), key=rank):
                rules = [other.rules for other in found if same_documents_and_models(other, run)]
                if family == "cascade":
                    is_used = run.rules not in rules
                else:
                    asks_large = run.ours and not run.is_replay and bool((run.calls.side == "large").any())
                    is_used = asks_large and not rules
                if is_used and _is_whole(run, is_scored):
                    found.append(run)
        return found

    def replay(self, run: FinishedRun, method: Method, threshold: float | None = None) -> FinishedRun | None:
        """Return what a method would have done on the documents of a run. None: a call is not known."""
        return replay(run, self.calls(run), method, threshold)

    def add_replays(self, methods: Sequence[Method], thresholds: Sequence[float]) -> Iterator[str]:
        """Add the result of each method at each threshold, for each pair on each benchmark. Yields a sentence for each
        one that cannot be replayed, or whose score is not known."""
        runs = self.replayable("cascade", "solo", "full_rt", "alone", is_scored=False)
        for run, method in itertools.product(runs, methods):
            for threshold in thresholds if method.needs_threshold else [None]:
                made = self.replay(run, method, threshold)
                shown = method.name + (f",min_confidence={threshold:g}" if threshold else "")
                if made is None:
                    yield (
                        f"{run.file}: method={shown} cannot be replayed on its documents. The runs of its models, with "
                        f"the same decoding, have {self.what_is_missing(run, method)}."
                    )
                    continue
                self.add(made)
                if made.samples.score.isna().any():
                    yield (
                        f"{run.file}: the score of method={shown} is not known, because only the task's own metric can "
                        "score its answers, and no run has all of them as its final ones: add runs of large, large_r "
                        "and full_rt."
                    )

    def what_is_missing(self, run: FinishedRun, *methods: Method) -> str:
        """Return which calls of these methods not all documents of a run have, in words."""
        calls = self.calls(run)
        found, names = calls.groupby("name").doc_id.nunique(), dict.fromkeys(names_of_calls(run, *methods))
        counts = {name: found.get(name, 0) for name in names}
        lacking = [f"{name} on {count} of {run.documents}" for name, count in counts.items() if count < run.documents]
        return ", ".join(lacking) or "no probability of an answer"

    def _calls(self, run: FinishedRun) -> pd.DataFrame:
        """Return all calls on the documents of a run with its models."""
        runs = self.select(benchmark=run.benchmark)
        others = (other for other in runs if other is not run and other.ours and not other.is_replay)
        return joined_calls(run, others, *self.pair(run))

    # --- names ---

    def label(self, model: str) -> str:
        """Return a short name of a model: the paper's, or the last part of its path or address."""
        papers = paper_numbers.family(model)
        if papers is not None:
            return papers[1]
        name = PurePath(model.rstrip("/")).name.removesuffix(".jsonl") or model
        others = {other for _, setup in self.runs for other in (setup.model, setup.small) if other not in ("", model)}
        same = any(PurePath(other).name.removesuffix(".jsonl") == name for other in others)
        return "/".join([*PurePath(model).parts[-2:-1], name]) if same else name

    def name(self, setup: Setup) -> str:
        """Return the name of a row, such as large R, Full RT or MAI R(S2). Runs of several pairs have their models in
        it: 8B R, Full RT 8B + 2B. The options that differ between runs of this name follow in brackets."""
        common = self._common(setup)
        options = ", ".join(f"{name}={value}" for name, value in setup.options if (name, value) not in common)
        return self._base(setup) + (f" ({options})" if options else "")

    def _common(self, setup: Setup) -> Options:
        """Return the options of a setup that all runs of its name have."""
        same = [other for _, other in self.runs if self._base(other) == self._base(setup)]
        return tuple(one for one in setup.options if all(one in other.options for other in same))

    def _base_name(self, setup: Setup) -> str:
        models = [self.roles.get(model) or self.label(model) for model in (setup.model, setup.small) if model]
        if setup.family == "alone":
            return f"{models[0]}{' ' if setup.variant else ', '}{setup.prompt}"
        names = [NAMES.get(setup.method, setup.method.name)]
        names += [] if set(models) <= {*SIDES} else [" + ".join(models)]
        is_usual = (setup.variant or "R", setup.two_stage) == ("R", False)
        return " ".join(names + ([] if is_usual or not setup.method.thinking else [setup.prompt]))

    def legend(self) -> Iterator[str]:
        """Yield what the names leave out: the models, and the options that all runs of a name have."""
        models = [f"{side}: {model}" for side in SIDES for model, role in self.roles.items() if role == side]
        yield from ["; ".join(models)] * bool(models)
        left_out = {(self._base(setup), option): None for _, setup in self.runs for option in self._common(setup)}
        bases = {self._base(setup) for _, setup in self.runs}
        for option in dict.fromkeys(option for _, option in left_out):
            names = [base for base, other in left_out if other == option]
            yield f"{option[0]}={option[1]}: {'all methods' if len(names) == len(bases) else ', '.join(names)}"

    # --- scores, costs and comparisons ---

    def clusters(self, benchmark: str) -> Clusters | None:
        """Return the cluster of each document of a benchmark. None: no two documents share an image."""
        return self._clusters[benchmark]

    def _score(self, run: FinishedRun) -> Estimate | None:
        """Return the score of a run in percent, with the benchmark's metric. None: there is none."""
        is_known = run.samples.score.notna().all()
        return metrics.score(run.samples, run.benchmark, self.clusters(run.benchmark)) if is_known else None

    def exit_share(self, run: FinishedRun, exit: str) -> Estimate | None:
        """Return the documents that finish at an exit, in percent of those with a trace. None: none has one."""
        return self.mean_score(run.benchmark, run.samples.exit.dropna() == exit)

    def mean_score(self, benchmark: str, scores: pd.Series) -> Estimate | None:
        """Return the mean score of single documents, in percent. None: there are none, or one has no score."""
        plain = metrics.plain(scores)
        return metrics.score(plain, "", self.clusters(benchmark)) if plain.score.notna().all() else None

    def baselines(self, run: FinishedRun) -> dict[str, FinishedRun | None]:
        """Return the runs beside which a method is read, by their names. None: there is none."""
        setup, benchmark = run.setup, run.benchmark
        large_s = self.get(benchmark, setup.short_answers("large"))
        thinking: Variant = "native" if setup.variant == "native" else "R"
        large_r = (self.get(benchmark, setup.alone("large", thinking, stages)) for stages in (False, True))
        found = {
            "large S": large_s,
            "Full RT": self.full_rt(run) if setup.small else large_s and self.full_rt(large_s),
            "large R": next(filter(None, large_r), None),
        }
        if setup.small:
            found["small S"] = self.get(benchmark, setup.short_answers("small"))
            found["small R"] = self.get(benchmark, setup.alone("small", setup.variant or "R", setup.two_stage))
        return found

    def _compare(self, first: FinishedRun, second: FinishedRun) -> Comparison | None:
        """Compare two runs on the documents that both have a score for, and the same gold answer. None: there are
        none."""
        both = first.samples.index.intersection(second.samples.index)
        a, b = first.samples.loc[both], second.samples.loc[both]
        same = a.score.notna() & b.score.notna() & (a.target == b.target)
        return metrics.compare(a[same], b[same], first.benchmark, self.clusters(first.benchmark))


def _roles(runs: Sequence[FinishedRun]) -> dict[str, Side]:
    """Return the side of each model. Empty: the runs have several pairs, or one model on both sides."""
    models = {(run.setup.model_of(side), side) for run in runs for side in SIDES if (run.calls.side == side).any()}
    is_pair = len(dict(models)) == len({side for _, side in models}) == len(models)
    return dict(models) if is_pair else {}


def same_documents_and_models(first: FinishedRun, second: FinishedRun) -> bool:
    """Return whether the second run has the benchmark, the models, the prompts and the decoding of the first one, so
    that a replay on the first one is that on the second one. It may have no small model."""
    a, b = first.replay_setup, second.replay_setup
    same = (first.benchmark, a.model, a.variant, a.two_stage, a.decoding) == (
        (second.benchmark, b.model, b.variant, b.two_stage, b.decoding)
    )
    return same and (not b.small or (b.small, b.transfer) == (a.small, a.transfer))


def _is_whole(run: FinishedRun, is_scored: bool) -> bool:
    """Return whether all documents of a run have a trace, and a score if `is_scored`."""
    samples = run.samples
    return bool(len(samples) and samples.exit.notna().all() and (samples.score.notna().all() or not is_scored))


def _clusters(runs: Sequence[FinishedRun]) -> Clusters | None:
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


def short_answer_replays(run: FinishedRun) -> Iterator[FinishedRun]:
    """Yield the runs that are inside another one: each model with the Simple prompt. Their answers are scored here, so
    those of another task are left out."""
    if run.setup.family == "alone" or not run.ours:
        return
    for side in SIDES:
        method = Method(side, (Ask(side, "simple"), Stop(side, f"{side}.simple")))
        made = replay(run, named_calls(run), method)
        if made is not None and made.samples.score.notna().all():
            yield made
