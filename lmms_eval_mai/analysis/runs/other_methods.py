"""What other methods and thresholds would have done on the documents of finished runs, without a new run."""

from collections.abc import Collection, Iterator, Sequence

import pandas as pd

from lmms_eval_mai.analysis.runs.folders import FinishedRun
from lmms_eval_mai.analysis.runs.replay import replay, run_of_replay
from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.method.agreement import AgreementRules
from lmms_eval_mai.method.benchmarks import BENCHMARKS
from lmms_eval_mai.method.methods import Method


def has_rules(run: FinishedRun) -> bool:
    """Return whether a run has the rules of agreement of its benchmark: lmms-eval's own tasks have general ones."""
    return run.benchmark in BENCHMARKS and run.setup.variant is not None


def replay_of(
    runs: Runs, run: FinishedRun, method: Method, threshold: float | None = None, rules: AgreementRules | None = None
) -> pd.DataFrame | None:
    """Return what a method would have done on the documents of a run. None: a call is not known."""
    frames = runs.calls_by_name(run)
    setup = run.setup.replay_setup
    return replay(method, frames, setup, run.benchmark, rules or run.rules, threshold) if frames else None


def add_replays(runs: Runs, methods: Collection[Method], thresholds: Sequence[float]) -> Iterator[str]:
    """Add the result of each method at each threshold to the runs, for each pair on each benchmark. Yields a sentence
    for each one that cannot be replayed."""
    bases = runs.replayable("cascade", "own", "full_rt", "alone")
    for method in methods:
        for threshold in thresholds if method.needs_threshold else [None]:
            replays = [(base, replay_of(runs, base, method, threshold)) for base in bases]
            for base, documents in replays:
                if documents is not None:
                    setup = base.setup.replay_setup.with_method(method, threshold)
                    runs.add(run_of_replay(base, setup, documents, runs.calls_by_name(base)))
            if all(documents is None for _, documents in replays):
                asked = ", ".join(ask.name for ask in method.asks)
                shown = method.name + (f",min_confidence={threshold:g}" if threshold else "")
                yield (
                    f"method={shown} cannot be replayed: its calls ({asked}) are not all in these runs of one pair, "
                    "on the same documents, with the same decoding."
                )
