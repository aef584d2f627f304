"""The time of finished runs: their calls with the times of profiles, one after another (Eq. 27, Table 11) and in full
batches, without the measured seconds of the calls; and the measured wall time on ChartQA (Table 12)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pandas as pd

from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reports import build, paper_numbers
from lmms_eval_mai.reports.evidence import Evidence, of_run
from lmms_eval_mai.reports.methods import identity
from lmms_eval_mai.reports.metrics import per_document, with_paper
from lmms_eval_mai.reports.paper_numbers import PaperNumber, benchmark_name
from lmms_eval_mai.reports.read import Run
from lmms_eval_mai.reports.report import Cell, Estimate, Of, Report, Table, table
from lmms_eval_mai.times import profile
from lmms_eval_mai.times.call_times import BatchTimes, CallTimes, batch_sizes
from lmms_eval_mai.times.profile import Profile

PAPER = "paper"
ROWS = {"transfer": "Full RT", "cascade": "MAI"}
"""Mode -> its row of Table 11."""
PAIR = {"small": ("Qwen3-VL", "2B"), "large": ("Qwen3-VL", "8B")}
"""The models of Table 11."""
BACKENDS = {"transformers": "HF", "vllm": "vLLM"}
"""Engine -> the paper's name of the backend in Table 12."""


@dataclass
class Profiles:
    """The profiles of one device."""

    profiles: Sequence[Profile]
    names: Mapping[Side, str] = field(default_factory=dict)
    """Side -> the profile of its calls, whatever its model is. Other models have their own profiles."""

    @classmethod
    def read(cls, given: Sequence[str] = (PAPER,), names: Mapping[Side, str] | None = None) -> "Profiles":
        """Read the profiles of `--profile`: the paper's, and those of files. Raises `ArgumentError`."""
        files = [profile.of_paper() if name == PAPER else [profile.read(Path(name))] for name in given]
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
        """Return the times of the calls of one side of a run. None: no profile has its model."""
        name = self.names.get(side, model)
        known = (one.model for one in self.profiles if name in (one.model, one.name, identity(one.model)))
        return next((self._times[one] for one in known), None)


# --- the calls with their times ---


@dataclass(frozen=True)
class Timed:
    """The calls of one run with their estimated seconds."""

    run: Run
    calls: pd.DataFrame
    """The calls of the first answer to each document, with the columns of `CallTimes.of`."""
    times: Mapping[Side, CallTimes]
    """The times of each side that makes calls."""
    paper: PaperNumber | None = None
    """The time that Table 11 prints for the same calls."""

    def total(self, column: str) -> float:
        """Return the sum of a column over all calls."""
        return float(self.calls[column].sum())

    def of_side(self, side: Side) -> pd.DataFrame:
        return self.calls[self.calls["side"] == side]

    def side_s(self, side: Side, column: str) -> float | None:
        """Return the sum of a column over the calls of one model. None: it makes no calls."""
        return float(self.of_side(side)[column].sum()) if side in self.times else None


def timed(run: Run, profiles: Profiles) -> Timed | str:
    """Return all calls of a run with their estimated seconds, or why there are none."""
    if run.calls.empty or run.calls["doc_id"].nunique() != run.documents:
        return "its samples have no calls"
    # A model alone may be the small or the large one of its pair.
    models = {"small": run.method.small or run.method.model, "large": run.method.model}
    found = {side: profiles.of(side, models[side]) for side in SIDES if (run.calls["side"] == side).any()}
    if missing := [models[side] for side, one in found.items() if one is None]:
        return f"no profile is of {' and '.join(missing)}"
    times = {side: one for side, one in found.items() if one is not None}
    calls = run.calls.reset_index(drop=True)
    seconds = [one.of(calls[calls["side"] == side]) for side, one in times.items()]
    return Timed(run, calls.join(pd.concat(seconds)), times)


def seconds_of(run: Run, profiles: Profiles) -> pd.Series | None:
    """Return the estimated seconds of each document of a run, by its doc_id: its calls one after another, with a single
    TTFT; the mean of its answers, if there are several. None: there is no estimate."""
    found = timed(run, profiles)
    return None if isinstance(found, str) else per_document(found.calls, found.calls["single_s"], run.samples)


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
            if not isinstance(one := timed(run, profiles), str):
                first = one.calls[one.calls["repeat"] == 0]
                found.append(replace(one, calls=first, paper=_printed(one, profiles)))
    return found


def _printed(one: Timed, profiles: Profiles) -> PaperNumber | None:
    """Return the time in Table 11. None: it has other models, another method or another number of documents."""
    run, method = one.run, one.run.method
    same = method.mode in ROWS and method.variant == "R" and not method.two_stage and not method.options
    if not same or profiles.device != profile.PAPER_DEVICE or run.documents != paper_numbers.documents(run.benchmark):
        return None
    pair = {side: paper_numbers.family(times.profile.model) for side, times in one.times.items()}
    return paper_numbers.number(11, ROWS[method.mode], run.benchmark, "") if pair == PAIR else None


# --- the tables ---


def report(folders: Sequence[Path], profiles: Profiles) -> Report:
    """Return the estimated times of all runs in the folders. Raises `ArgumentError` if no run has an estimate."""
    evidence = build.evidence(folders)
    found = _all_timed(evidence, profiles)
    made = [*_table_11(evidence, profiles, found), *_by_stage(evidence, found), *_throughput(evidence, found)]
    reasons = {run: one for run in evidence.runs.values() if isinstance(one := timed(run, profiles), str)}
    if not made:
        causes = "; ".join(dict.fromkeys(reasons.values())) or "there is no run of mai_cascade"
        known = ", ".join(one.model for one in profiles.profiles)
        raise ArgumentError(
            f"{', '.join(map(str, folders))}: no run has an estimate ({causes}). A run must be of mai_cascade with "
            f"--log_samples. The profiles are of {known}: measure others with lmms-eval-mai profile, or choose the "
            "profiles with --small and --large."
        )
    gaps = [
        *evidence.gaps,
        *(
            f"{evidence.name(run.method)} on {benchmark_name(run.benchmark)} has no estimate, because {reason}."
            for run, reason in reasons.items()
        ),
    ]
    if "throughput" not in {one.key for one in made}:
        gaps.append(
            "The time in full batches needs profiles with batch sizes: lmms-eval-mai profile measures them, and the "
            "paper does not have them."
        )
    return Report((), tuple(made), (), build.summaries(evidence), tuple(dict.fromkeys(gaps)))


def report_tables(evidence: Evidence, profiles: Profiles | None = None) -> Iterator[Table]:
    """Yield the tables of time of a report: Table 11, with the paper's profiles unless others are given, and the
    measured Table 12."""
    profiles = profiles or Profiles.read()
    yield from _table_11(evidence, profiles, _all_timed(evidence, profiles))
    yield from table_12(evidence)


def _table_11(evidence: Evidence, profiles: Profiles, found: list[Timed]) -> Iterator[Table]:
    beyond, calls = int(sum(one.total("beyond") for one in found)), sum(len(one.calls) for one in found)
    notes = [
        f"The calls of the runs with the profile of {profiles.device}, one after another (Eq. 27): TTFT by the image "
        "tokens and the other tokens of the prompt (by the length of the prompt where the image tokens are not known), "
        "plus output tokens / (tokens per second). One TTFT: the same without the share of the TTFT in the tokens per "
        "second, which Eq. 27 counts twice. Full RT / this: on the documents that both runs have.",
        *[profile.PAPER_NOTE] * (profiles.device == profile.PAPER_DEVICE),
    ]
    if beyond:
        notes.append(
            f"{beyond} of {calls} calls have a prompt that is longer than the profile's: their TTFT is on the line of "
            "its last two points."
        )

    def full_rt(one: Timed) -> Timed | None:
        """Return the first Full RT of the same benchmark with the same models. None: there is none."""
        method = one.run.method
        for other in found:
            pair = (other.run.method.model, other.run.method.small)
            same = pair == (method.model, method.small) if method.small else method.model in pair
            if same and other.run.method.mode == "transfer" and other.run.benchmark == one.run.benchmark:
                return other
        return None

    def speedup(column: str, one: Timed) -> float | None:
        """Return how many times as long Full RT takes on the same documents."""
        if (full := full_rt(one)) is None:
            return None
        mine, theirs = one.run.samples.target, full.run.samples.target
        common = mine.index[mine == theirs[~theirs.index.duplicated()].reindex(mine.index)]
        spent, others = (float(of.calls[column][of.calls["doc_id"].isin(common)].sum()) for of in (one, full))
        return others / spent if spent else None

    def equation(one: Timed) -> Cell:
        return with_paper(Estimate(one.total("equation_s"), one.run.documents), one.paper)

    def off_paper(one: Timed) -> float | None:
        return 100 * (one.total("equation_s") / one.paper.value - 1) if one.paper else None

    def speedup_beside_papers(one: Timed) -> Cell:
        ratio, is_mai = speedup("equation_s", one), one.paper is not None and one.run.method.mode == "cascade"
        printed = paper_numbers.number(11, "speedup", one.run.benchmark, "") if is_mai else None
        return ratio and with_paper(Estimate(ratio, one.run.documents), printed)

    columns: tuple[Of[Timed], ...] = (
        *of_run(evidence, lambda one: one.run),
        Of("n", "count", 0, lambda one: one.run.documents),
        Of("small, s", "number", 1, lambda one: one.side_s("small", "equation_s")),
        Of("large, s", "number", 1, lambda one: one.side_s("large", "equation_s")),
        Of("Eq. 27, s", "number", 1, equation),
        Of("- paper, %", "number", 1, off_paper),
        Of("Full RT / this, Eq. 27", "number", 2, speedup_beside_papers),
        Of("one TTFT, s", "number", 1, lambda one: one.total("single_s")),
        Of("Full RT / this, one TTFT", "number", 2, partial(speedup, "single_s")),
        Of("s per document", "number", 3, lambda one: one.total("single_s") / one.run.documents),
    )
    return table("table-11", "Table 11: estimated time of the calls, one after another", columns, found, notes)


def _by_stage(evidence: Evidence, found: list[Timed]) -> Iterator[Table]:
    columns: tuple[Of[Timed], ...] = (
        *of_run(evidence, lambda one: one.run),
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
    return table(
        "times-by-stage",
        "Estimated time by model and stage",
        columns,
        [replace(one, calls=of) for one in found for _, of in one.calls.groupby(["side", "stage"], sort=False)],
        (
            "Prompt and output tokens are averages of a call, and seconds are sums. Longer prompts: calls with a "
            "prompt that is longer than all of the profile's.",
        ),
    )


def _batched(one: Timed) -> Iterator[Timed]:
    """Yield the method with its calls in full batches, at each batch size that all profiles have."""
    for size in batch_sizes(times.profile for times in one.times.values()):
        seconds = [BatchTimes(times.profile, size).of(one.of_side(side)) for side, times in one.times.items()]
        calls = one.calls[["doc_id", "side"]].join(pd.concat(seconds)).assign(batch_size=size)
        yield replace(one, calls=calls.assign(total_s=calls["prefill_s"] + calls["batch_s"]))


def _throughput(evidence: Evidence, found: list[Timed]) -> Iterator[Table]:
    """Yield the engine-seconds of each model in full batches, if the profiles have batches."""

    def slower_s(one: Timed) -> float:
        return max(one.side_s(side, "total_s") or 0.0 for side in SIDES)

    columns: tuple[Of[Timed], ...] = (
        *of_run(evidence, lambda one: one.run),
        Of("n", "count", 0, lambda one: one.run.documents),
        Of("batch size", "count", 0, lambda one: int(one.calls["batch_size"].iloc[0])),
        Of("small engine, s", "number", 1, lambda one: one.side_s("small", "total_s")),
        Of("large engine, s", "number", 1, lambda one: one.side_s("large", "total_s")),
        Of("prefill, %", "number", 1, lambda one: 100 * one.total("prefill_s") / one.total("total_s")),
        Of("one GPU, s", "number", 1, lambda one: one.total("total_s")),
        Of("two GPUs, s", "number", 1, slower_s),
        Of("documents per hour, one GPU", "number", 0, lambda one: 3600 * one.run.documents / one.total("total_s")),
    )
    return table(
        "throughput",
        "Estimated time of the calls in full batches",
        columns,
        [batched for one in found for batched in _batched(one)],
        (
            "Each engine always works on a full batch. Prompt tokens from the prefix cache need no prefill. On one GPU "
            "the engines share it, so their seconds add up; with a GPU for each, the slower engine decides. This is a "
            "lower bound: waiting for the last calls and other work are not included.",
        ),
    )


def table_12(evidence: Evidence) -> Iterator[Table]:
    """Yield Table 12 if there are runs on ChartQA with their wall times: the large model with R, and MAI."""
    cascades = list(evidence.of("cascade", "chartqa"))
    larges = {run.method.model for run in cascades}
    alone = [run for run in evidence.of("alone", "chartqa") if run.method.variant == "R"]
    runs = [run for run in alone if run.method.model in larges or run.speculation] + cascades

    def paper(run: Run, column: str) -> PaperNumber | None:
        """Return a cell of the paper's table. None: it has no such run, or no such number."""
        backend, method = BACKENDS.get(run.engine), run.method
        if backend is None or paper_numbers.family(method.model) != PAIR["large"] or method.options:
            return None
        if method.mode == "cascade":
            row = f"MAI (8B+2B), {backend}" if evidence.label(method.small) == "2B" else ""
        else:
            row = f"SD (8B+2B), {backend}" if run.speculation else f"8B-R, {backend}"
        printed = paper_numbers.table(12)
        value = printed["rows"][row][printed["columns"].index(column)] if row in printed["rows"] else None
        return None if value is None else PaperNumber(value, f"{printed['source']}, {row}, {column}")

    def accepted(run: Run) -> Cell:
        proposed, accepted = run.speculation or (0, 0)
        found = Estimate(100 * accepted / proposed, run.number) if proposed else None
        return with_paper(found, paper(run, "acceptance"))

    def wall_s(column: str, run: Run) -> Cell:
        documents = (run.number or 1) if column == "s_per_sample" else 1
        printed = None if run.method.two_stage else paper(run, column)
        return with_paper(Estimate((run.wall_s or 0.0) / documents, run.number), printed)

    def score(run: Run) -> Cell:
        return evidence.score(run, paper(run, "accuracy_s2" if run.method.two_stage else "accuracy"))

    columns: tuple[Of[Run], ...] = (
        Of("method", "text", 0, lambda run: evidence.name(run.method) + " with an assistant" * bool(run.speculation)),
        Of("engine", "text", 0, lambda run: run.engine or None),
        Of("n", "count", 0, lambda run: run.number),
        Of("accepted, %", "number", 1, accepted),
        Of("wall s", "number", 1, partial(wall_s, "total_s")),
        Of("s per sample", "number", 3, partial(wall_s, "s_per_sample")),
        Of("score", "number", 2, score),
    )
    return table(
        "table-12",
        "Table 12: measured wall time of strategies on ChartQA",
        columns,
        [run for run in runs if run.wall_s is not None and not run.derived],
        (
            "The wall time is the time of answering, without the starts of the engines. The paper's vLLM rows include "
            "them. Compare times only on the same machine and the same engine.",
        ),
    )
