"""Eq. 27 (Appendix B.2): the time of a run's calls one after another, and Table 11.

    seconds of a call = TTFT(prompt tokens) + output tokens / (tokens per second)

The TTFT and the speed of each model are the paper's (Tables 3 and 4), or those of a file of experiments/latency:

    {"device": "NVIDIA H100", "models": {CHECKPOINT: {"ttft_s": [[320, 0.034], ...], "tokens_per_s": 90}, ...}}
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.methods import FULL_RT, MAI
from lmms_eval_mai.reports import paper_numbers
from lmms_eval_mai.reports.folders import Run
from lmms_eval_mai.reports.metrics import with_paper
from lmms_eval_mai.reports.paper_tables import is_papers
from lmms_eval_mai.reports.report import Cell, Column, Estimate, Table, table
from lmms_eval_mai.reports.runs import Runs, name_columns
from lmms_eval_mai.reports.setups import identity

PAPERS_DEVICE = "NVIDIA H100 (paper)"
ROWS = {FULL_RT: "Full RT", MAI: "MAI"}
"""Method -> its row of Table 11."""
NOTE = (
    "Computed, not measured: the calls that the runs made, one after another. Eq. 27 counts a share of the TTFT twice, "
    "because the tokens per second of Table 4 are those of whole requests."
)
PAPERS_NOTE = (
    "The paper's times look like those of transformers: its 8B model takes 20.5 ms for a token, as its 4B model does, "
    "and an H100 reads the weights of an 8B model in about 5 ms. So ratios computed with them may not hold for vLLM. "
    "On vLLM at batch size 32, the paper measured 1,122 s for 8B-R (one stage) and 468 s for MAI on ChartQA, with "
    "starts (Table 12)."
)


@dataclass(frozen=True)
class ModelTimes:
    """The times of one model, one call at a time."""

    ttft_s: Sequence[tuple[float, float]]
    """Prompt tokens and the seconds to the first token. Points with the same number of tokens count with their mean."""
    tokens_per_s: float
    """Output tokens by the seconds of whole requests, as "Avg Tok/s" of Table 4."""

    def seconds(self, prompt_tokens: npt.ArrayLike, output_tokens: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the seconds of calls by Eq. 27. Between two points, the TTFT is interpolated; before the first it is
        constant, and after the last it is on the line of the last two."""
        prompt = np.asarray(prompt_tokens, dtype=float)
        points = pd.DataFrame(self.ttft_s, columns=["tokens", "seconds"]).groupby("tokens")["seconds"].mean()
        slope = np.diff(points.to_numpy()[-2:]) / np.diff(points.index.to_numpy()[-2:])
        beyond = np.maximum(0, prompt - points.index[-1]) * max(0.0, float(slope[0]) if len(slope) else 0.0)
        ttft_s = np.interp(prompt, points.index, points) + beyond
        return np.asarray(ttft_s + np.asarray(output_tokens, dtype=float) / self.tokens_per_s)


@dataclass(frozen=True)
class Profile:
    """The times of the models on one device."""

    device: str
    models: Mapping[str, ModelTimes]

    def of_calls(self, calls: pd.DataFrame, models: Mapping[str, str]) -> pd.Series | None:
        """Return the seconds of each call. None: the profile lacks a model that was called.

        `calls` has the columns `side`, `prompt_tokens` and `output_tokens`. `models`: side -> model.
        """
        known = {identity(name): times for name, times in self.models.items()}
        found = pd.Series(0.0, index=calls.index)
        for side, of_side in calls.groupby("side"):
            if (times := known.get(identity(models[str(side)]))) is None:
                return None
            found[of_side.index] = times.seconds(of_side["prompt_tokens"], of_side["output_tokens"])
        return found

    def of_run(self, run: Run) -> pd.Series | None:
        """Return the seconds of each document of a run by its doc_id. None: not known."""
        if run.calls["doc_id"].nunique() != run.documents:
            return None
        # A model alone may be the small or the large one of its pair.
        found = self.of_calls(run.calls, {side: run.setup.model_of(side) for side in SIDES})
        return None if found is None else found.groupby(run.calls["doc_id"]).sum()


def read(name: str) -> Profile:
    """Return the profile of a file. Raises `ArgumentError` if the file is not one."""
    try:
        record = json.loads(Path(name).read_text(encoding="utf-8"))
        return Profile(str(record["device"]), {model: ModelTimes(**one) for model, one in record["models"].items()})
    except OSError as error:
        raise ArgumentError(f"--profile {name} cannot be read ({error.strerror}).") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ArgumentError(f"--profile {name} is not a profile: experiments/latency/calls.py writes one.") from None


def of_paper() -> Profile:
    """Return the times of Qwen3-VL 2B, 4B and 8B on one H100 (Tables 3 and 4)."""
    third, fourth = paper_numbers.table(3), paper_numbers.table(4)
    lengths = [column["tokens"] for column in third["columns"]]
    models = {}
    for model, (family, name) in paper_numbers.load()["models"].items():
        if family == "Qwen3-VL":
            ttft_s = [(tokens, ms / 1000) for tokens, ms in zip(lengths, third["rows"][name], strict=True)]
            models[model] = ModelTimes(ttft_s, fourth["rows"][name]["tokens_per_s"])
    return Profile(PAPERS_DEVICE, models)


def table_11(runs: Runs, profile: Profile) -> Iterator[Table]:
    """Yield Table 11 with the runs whose models the profile has."""
    known = [run for benchmark in runs.benchmarks() for run in runs.of_benchmark(benchmark)]
    times = {run: found for run in known if (found := profile.of_run(run)) is not None}

    def paper(run: Run, row: str = "") -> float | None:
        """Return the number of Table 11. None: it has other models, another method or other documents."""
        method = ROWS.get(run.setup.method) if is_papers(run.setup) and not run.setup.two_stage else None
        same = profile.device == PAPERS_DEVICE and run.documents == paper_numbers.documents(run.benchmark)
        return paper_numbers.number(11, row or method, run.benchmark, "") if method and same else None

    def seconds(run: Run) -> Cell:
        return with_paper(Estimate(times[run].sum(), run.documents), paper(run))

    def speedup(run: Run) -> Cell:
        """Return how many times as long Full RT takes on the documents of both."""
        full = runs.full_rt(run) if run.setup.kind == "cascade" else None
        if full not in times:
            return None
        both = times[run].index.intersection(times[full].index)
        ratio = times[full][both].sum() / times[run][both].sum()
        return with_paper(Estimate(ratio, len(both)), paper(run, "speedup"))

    columns: tuple[Column[Run], ...] = (
        *name_columns(runs, lambda run: run),
        Column("n", "count", 0, lambda run: run.documents),
        Column("Eq. 27, s", "number", 1, seconds),
        Column("Full RT / MAI", "number", 2, speedup),
    )
    notes = [NOTE, *[PAPERS_NOTE] * (profile.device == PAPERS_DEVICE)]
    title = f"Table 11: estimated time of the calls one after another, {profile.device}"
    yield from table("table-11", title, columns, list(times), notes)
