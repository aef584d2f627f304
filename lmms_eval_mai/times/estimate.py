"""The estimated time of finished runs: their calls with the times of profiles, one after another (Eq. 27, Table 11) and
in full batches. The measured seconds of the calls are not used."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pandas as pd

from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reports import build, paper_numbers
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.methods import identity
from lmms_eval_mai.reports.metrics import per_document, with_paper
from lmms_eval_mai.reports.paper_numbers import PaperNumber, benchmark_name
from lmms_eval_mai.reports.read import Run
from lmms_eval_mai.reports.report import Cell, Estimate, Of, Report, Table, table
from lmms_eval_mai.times import paper_profiles, profile
from lmms_eval_mai.times.call_times import BatchTimes, CallTimes, batch_sizes
from lmms_eval_mai.times.measured import table_12
from lmms_eval_mai.times.profile import Profile

PAPER = "paper"
ROWS = {"transfer": "Full RT", "cascade": "MAI"}
"""Mode -> its row of Table 11."""
PAIR = {"small": ("Qwen3-VL", "2B"), "large": ("Qwen3-VL", "8B")}
"""The models of Table 11."""
NO_BATCHES = (
    "The time in full batches needs profiles with batch sizes: lmms-eval-mai profile measures them, and the paper does "
    "not have them."
)


@dataclass
class Profiles:
    """The profiles of one device."""

    profiles: Sequence[Profile]
    names: Mapping[Side, str] = field(default_factory=dict)
    """Side -> the profile of its calls, whatever its model is. Other models have their own profiles."""

    @classmethod
    def read(cls, given: Sequence[str] = (PAPER,), names: Mapping[Side, str] | None = None) -> "Profiles":
        """Read the profiles of `--profile`: the paper's, and those of files. Raises `ArgumentError`."""
        files = [paper_profiles.profiles() if name == PAPER else [profile.read(Path(name))] for name in given]
        return cls([one for found in files for one in found], names or {})

    def __post_init__(self) -> None:
        """Raises `ArgumentError` if profiles contradict each other, or a name is unknown."""
        devices = {one.device: one for one in self.profiles}
        if len(devices) > 1:
            named = " and ".join(f"{one.source} ({device})" for device, one in devices.items())
            raise ArgumentError(f"The profiles are of different devices: {named}. Give those of one device.")
        self.device = next(iter(devices), "")
        self._times: dict[str, CallTimes] = {}
        for one in self.profiles:
            if one.model in self._times:
                both = f"{self._times[one.model].profile.source} and {one.source}"
                raise ArgumentError(f"{both} are both profiles of {one.model}. Give only one of them.")
            self._times[one.model] = CallTimes(one)
        for side, name in self.names.items():
            if name not in {known for one in self.profiles for known in (one.name, one.model)}:
                known = ", ".join(one.name for one in self.profiles)
                raise ArgumentError(f"--{side} {name} is not a profile. The profiles are: {known}.")

    def of(self, side: Side, model: str) -> CallTimes | None:
        """Return the times of the calls of one side of a pair. None: no profile has this model."""
        name = self.names.get(side, model)
        found = (one for one in self.profiles if name in (one.model, one.name, identity(one.model)))
        return next((self._times[one.model] for one in found), None)


def report(folders: Sequence[Path], profiles: Profiles) -> Report:
    """Return the estimated times of all runs in the folders. Raises `ArgumentError` if there is no run with a trace, or
    none whose models have profiles."""
    evidence, _ = build.evidence(folders)
    runs, made = list(evidence.runs.values()), list(tables(evidence, profiles))
    if not any(map(has_calls, runs)):
        raise ArgumentError(
            f"{', '.join(map(str, folders))}: no run has the calls of its documents. Run mai_cascade with "
            "--log_samples."
        )
    if not made:
        models = dict.fromkeys(model for run in runs for model in _missing(run, profiles))
        known = ", ".join(one.model for one in profiles.profiles)
        raise ArgumentError(
            f"No profile is of {' or '.join(models)}: the profiles are of {known}. Measure it with lmms-eval-mai "
            "profile, or choose the profiles with --small and --large."
        )
    gaps = list(evidence.gaps)
    for run in runs:
        names = _missing(run, profiles)
        why = f"no profile is of {' and '.join(names)}" if has_calls(run) else "its samples have no calls"
        if names or not has_calls(run):
            name = f"{evidence.name(run.method)} on {benchmark_name(run.benchmark)}"
            gaps.append(f"{name} has no estimate, because {why}.")
    if "throughput" not in {one.key for one in made}:
        gaps.append(NO_BATCHES)
    return Report((), tuple(made), (), build.summaries(evidence), tuple(dict.fromkeys(gaps)))


def tables(evidence: Evidence, profiles: Profiles) -> Iterator[Table]:
    """Yield the estimated times of all runs that the profiles fit: Table 11, the same by stage, and full batches."""
    timed = _all_timed(evidence, profiles)
    yield from _table_11(evidence, profiles, timed)
    yield from _by_stage(evidence, timed)
    yield from _throughput(evidence, timed)


def report_tables(evidence: Evidence, profiles: Profiles | None = None) -> Iterator[Table]:
    """Yield the tables of time of a report: Table 11, with the paper's profiles unless others are given, and the
    measured Table 12."""
    profiles = profiles or Profiles.read()
    yield from _table_11(evidence, profiles, _all_timed(evidence, profiles))
    yield from table_12(evidence)


def seconds_of(run: Run, profiles: Profiles) -> pd.Series | None:
    """Return the estimated seconds of each document of a run, by its doc_id: its calls one after another, with a single
    TTFT; the mean of its answers, if there are several. None: an answer has no calls, or a profile is missing."""
    calls = _timed_calls(run, profiles)
    return None if calls is None else per_document(calls, calls["single_s"], run.samples)


# --- the calls with their times ---


@dataclass(frozen=True)
class Timed:
    """The calls of one run with their estimated seconds."""

    run: Run
    calls: pd.DataFrame
    """The calls of the first answer to each document, with the columns of `CallTimes.of`."""
    times: Mapping[Side, CallTimes]
    """The times of each side that makes calls."""
    paper: PaperNumber | None
    """The time that Table 11 prints for the same calls."""

    def total(self, column: str) -> float:
        """Return the sum of a column over all calls."""
        return float(self.calls[column].sum())

    def of_side(self, side: Side) -> pd.DataFrame:
        """Return the calls of one model."""
        return self.calls[self.calls["side"] == side]

    def side_s(self, side: Side, column: str) -> float | None:
        """Return the sum of a column over the calls of one model. None: it makes no calls."""
        return float(self.of_side(side)[column].sum()) if side in self.times else None


def has_calls(run: Run) -> bool:
    """Return whether all documents of a run have calls."""
    return not run.calls.empty and run.calls["doc_id"].nunique() == run.documents


def _models(run: Run) -> dict[Side, str]:
    """Return the model of each side that makes calls. A model alone may be the small or the large one of its pair."""
    both: dict[Side, str] = {"small": run.method.small or run.method.model, "large": run.method.model}
    return {side: model for side, model in both.items() if (run.calls["side"] == side).any()}


def _missing(run: Run, profiles: Profiles) -> list[str]:
    """Return the models of a run that no profile has."""
    return [model for side, model in _models(run).items() if profiles.of(side, model) is None]


def _times(run: Run, profiles: Profiles) -> dict[Side, CallTimes]:
    """Return the times of each side that makes calls and has a profile."""
    found = {side: profiles.of(side, model) for side, model in _models(run).items()}
    return {side: times for side, times in found.items() if times is not None}


def _timed_calls(run: Run, profiles: Profiles) -> pd.DataFrame | None:
    """Return the calls of a run with the columns of `CallTimes.of`. None: there are none, or a profile is missing."""
    if not has_calls(run) or _missing(run, profiles):
        return None
    calls = run.calls.reset_index(drop=True)
    seconds = [times.of(calls[calls["side"] == side]) for side, times in _times(run, profiles).items()]
    return calls.join(pd.concat(seconds))


def _all_timed(evidence: Evidence, profiles: Profiles) -> list[Timed]:
    """Return the runs of all benchmarks that the profiles fit: Full RT, MAI, and models alone. If there is no run of
    the small model with its thinking, the thinking of Full RT is one."""
    found: list[Timed] = []
    for benchmark in evidence.benchmarks():
        runs = [run for mode in ("transfer", "cascade", "alone") for run in evidence.of(mode, benchmark)]
        for run in evidence.of("transfer", benchmark):
            method = run.method.alone("small", run.method.variant)
            if evidence.get(benchmark, method) is None:
                runs.append(replace(run, method=method, calls=run.calls[run.calls["stage"] == "think"]))
        for run in runs:
            if (calls := _timed_calls(run, profiles)) is not None:
                first = calls[calls["repeat"] == 0]
                found.append(Timed(run, first, _times(run, profiles), _printed(run, profiles)))
    return found


def _of_run(evidence: Evidence) -> tuple[Of[Timed], ...]:
    return (
        Of("benchmark", "text", 0, lambda one: benchmark_name(one.run.benchmark)),
        Of("method", "text", 0, lambda one: evidence.name(one.run.method)),
        Of("n", "count", 0, lambda one: one.run.documents),
    )


# --- Table 11 ---


def _printed(run: Run, profiles: Profiles) -> PaperNumber | None:
    """Return the time in Table 11. None: it has other models, another method or another number of documents."""
    method = run.method
    same = method.mode in ROWS and method.variant == "R" and not method.two_stage and not method.options
    if not same or profiles.device != paper_profiles.DEVICE or run.documents != paper_numbers.documents(run.benchmark):
        return None
    pair = {side: paper_numbers.family(one.profile.model) for side, one in _times(run, profiles).items()}
    return paper_numbers.number(11, ROWS[method.mode], run.benchmark, "") if pair == PAIR else None


def _table_11(evidence: Evidence, profiles: Profiles, timed: list[Timed]) -> Iterator[Table]:
    beyond, calls = int(sum(one.total("beyond") for one in timed)), sum(len(one.calls) for one in timed)
    notes = [
        f"The calls of the runs with the profile of {profiles.device}, one after another (Eq. 27): TTFT by the image "
        "tokens and the other tokens of the prompt (by the length of the prompt where the image tokens are not known), "
        "plus output tokens / (tokens per second). One TTFT: the same without the share of the TTFT in the tokens per "
        "second, which Eq. 27 counts twice."
    ]
    if beyond:
        notes.append(
            f"{beyond} of {calls} calls have a prompt that is longer than the profile's: their TTFT is on the line of "
            "its last two points."
        )

    def speedup(column: str, one: Timed) -> float | None:
        """Return how many times as long Full RT takes."""
        full = _full_rt(one, timed)
        return full.total(column) / full.run.documents / (one.total(column) / one.run.documents) if full else None

    def speedup_beside_papers(one: Timed) -> Cell:
        ratio, is_mai = speedup("equation_s", one), one.paper is not None and one.run.method.mode == "cascade"
        printed = paper_numbers.number(11, "speedup", one.run.benchmark, "") if is_mai else None
        return ratio and with_paper(Estimate(ratio, one.run.documents), printed)

    columns = (
        *_of_run(evidence),
        Of("small, s", "number", 1, lambda one: one.side_s("small", "equation_s")),
        Of("large, s", "number", 1, lambda one: one.side_s("large", "equation_s")),
        Of(
            "Eq. 27, s",
            "number",
            1,
            lambda one: with_paper(Estimate(one.total("equation_s"), one.run.documents), one.paper),
        ),
        Of("- paper, %", "number", 1, lambda one: one.paper and 100 * (one.total("equation_s") / one.paper.value - 1)),
        Of("Full RT / this, Eq. 27", "number", 2, speedup_beside_papers),
        Of("one TTFT, s", "number", 1, lambda one: one.total("single_s")),
        Of("Full RT / this, one TTFT", "number", 2, partial(speedup, "single_s")),
        Of("s per document", "number", 3, lambda one: one.total("single_s") / one.run.documents),
    )
    yield from table("table-11", "Table 11: estimated time of the calls, one after another", columns, timed, notes)


def _full_rt(one: Timed, timed: list[Timed]) -> Timed | None:
    """Return the first Full RT of the same benchmark with the same models. None: there is none."""
    method = one.run.method
    for other in timed:
        pair = (other.run.method.model, other.run.method.small)
        same = pair == (method.model, method.small) if method.small else method.model in pair
        if same and other.run.method.mode == "transfer" and other.run.benchmark == one.run.benchmark:
            return other
    return None


# --- by stage, and in full batches ---


def _by_stage(evidence: Evidence, timed: list[Timed]) -> Iterator[Table]:
    stages = ((one, calls) for one in timed for _, calls in one.calls.groupby(["side", "stage"], sort=False))
    columns: tuple[Of[Timed], ...] = (
        *_of_run(evidence)[:2],
        Of("model", "text", 0, lambda one: one.calls["side"].iloc[0]),
        Of("stage", "text", 0, lambda one: one.calls["stage"].iloc[0]),
        Of("calls", "count", 0, lambda one: len(one.calls)),
        Of("prompt tokens", "number", 1, lambda one: one.calls["prompt_tokens"].mean()),
        Of("output tokens", "number", 1, lambda one: one.calls["output_tokens"].mean()),
        Of("TTFT, s", "number", 1, lambda one: one.total("ttft_s")),
        Of("decoding, s", "number", 1, lambda one: one.total("decoding_s")),
        Of("Eq. 27, s", "number", 1, lambda one: one.total("equation_s")),
        Of("one TTFT, s", "number", 1, lambda one: one.total("single_s")),
        Of("longer prompts", "count", 0, lambda one: int(one.total("beyond"))),
    )
    notes = (
        "Prompt and output tokens are averages of a call, and seconds are sums. Longer prompts: calls with a prompt "
        "that is longer than all of the profile's.",
    )
    rows = [replace(one, calls=calls) for one, calls in stages]
    yield from table("times-by-stage", "Estimated time by model and stage", columns, rows, notes)


def _batched(one: Timed) -> Iterator[Timed]:
    """Yield the method with its calls in full batches, at each batch size that all profiles have."""
    for size in batch_sizes(times.profile for times in one.times.values()):
        seconds = [BatchTimes(times.profile, size).of(one.of_side(side)) for side, times in one.times.items()]
        calls = one.calls[["doc_id", "side"]].join(pd.concat(seconds)).assign(batch_size=size)
        yield replace(one, calls=calls.assign(total_s=calls["prefill_s"] + calls["batch_s"]))


def _throughput(evidence: Evidence, timed: list[Timed]) -> Iterator[Table]:
    """Yield the engine-seconds of each model in full batches, if the profiles have batches."""

    def slower_s(one: Timed) -> float:
        return max(one.side_s(side, "total_s") or 0.0 for side in SIDES)

    columns: tuple[Of[Timed], ...] = (
        *_of_run(evidence),
        Of("batch size", "count", 0, lambda one: int(one.calls["batch_size"].iloc[0])),
        Of("small engine, s", "number", 1, lambda one: one.side_s("small", "total_s")),
        Of("large engine, s", "number", 1, lambda one: one.side_s("large", "total_s")),
        Of("prefill, %", "number", 1, lambda one: 100 * one.total("prefill_s") / one.total("total_s")),
        Of("one GPU, s", "number", 1, lambda one: one.total("total_s")),
        Of("two GPUs, s", "number", 1, slower_s),
        Of("documents per hour, one GPU", "number", 0, lambda one: 3600 * one.run.documents / one.total("total_s")),
    )
    notes = (
        "Each engine always works on a full batch. Prompt tokens from the prefix cache need no prefill. On one GPU the "
        "engines share it, so their seconds add up; with a GPU for each, the slower engine decides. This is a lower "
        "bound: waiting for the last calls and other work are not included.",
    )
    rows = [batched for one in timed for batched in _batched(one)]
    yield from table("throughput", "Estimated time of the calls in full batches", columns, rows, notes)
