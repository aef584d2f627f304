"""Eq. 27 (Appendix B.2): the time of a run's calls one after another.

    seconds of a call = TTFT(prompt tokens) + output tokens / (tokens per second)

The TTFT and the speed of each model are the paper's (Tables 3 and 4), or those of a file of experiments/latency:

    {"device": "NVIDIA H100", "models": {CHECKPOINT: {"ttft_s": [[320, 0.034], ...], "tokens_per_s": 90}, ...}}
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from lmms_eval_mai.analysis import paper_numbers
from lmms_eval_mai.analysis.runs.folders import FinishedRun
from lmms_eval_mai.analysis.runs.setups import identity
from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.errors import ArgumentError

PAPERS_DEVICE = "NVIDIA H100 (paper)"


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
    """Name of a model as runs have it (`identity`) -> its times."""

    def seconds(self, run: FinishedRun) -> pd.Series | None:
        """Return the seconds of each document of a run by its doc_id. None: the profile lacks a model that was called,
        or a document has no calls."""
        seconds = pd.Series(0.0, index=run.samples.index)
        for side in SIDES:
            calls = run.calls[run.calls.side == side]
            times = self.models.get(run.setup.model_of(side))
            if calls.empty:
                continue
            if times is None:
                return None
            call_seconds = pd.Series(times.seconds(calls.prompt_tokens, calls.output_tokens), calls.doc_id)
            seconds = seconds.add(call_seconds.groupby(level=0).sum(), fill_value=0)
        return seconds if seconds.gt(0).all() else None


def read(name: str) -> Profile:
    """Return the profile of a file. Raises `ArgumentError` if the file is not one."""
    try:
        record = json.loads(Path(name).read_bytes())
        models = {identity(model): ModelTimes(**times) for model, times in record["models"].items()}
        return Profile(str(record["device"]), models)
    except OSError as error:
        raise ArgumentError(f"--profile {name} cannot be read ({error.strerror}).") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ArgumentError(f"--profile {name} is not a profile: experiments/latency/calls.py writes one.") from None


def papers_profile() -> Profile:
    """Return the times of Qwen3-VL 2B, 4B and 8B on one H100 (Tables 3 and 4)."""
    third, fourth = paper_numbers.table(3), paper_numbers.table(4)
    lengths = [column["tokens"] for column in third["columns"]]
    models = {}
    for model, (family, name) in paper_numbers.load()["models"].items():
        if family == "Qwen3-VL":
            ttft_s = [(tokens, ms / 1000) for tokens, ms in zip(lengths, third["rows"][name], strict=True)]
            models[model] = ModelTimes(ttft_s, fourth["rows"][name]["tokens_per_s"])
    return Profile(PAPERS_DEVICE, models)
