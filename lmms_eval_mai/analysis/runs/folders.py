"""Reads lmms-eval's output folders.

A folder has `<time>_results.json` and `<time>_samples_<task>.jsonl`. A results file gives one `FinishedRun` for each
of its tasks, with a frame of its samples and a frame of its calls. The texts of calls are not kept; `records` reads
them again. What is missing or broken becomes a sentence, and the rest is used.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from lmms_eval_mai.analysis.frames import Frames, Line, call_row, samples_and_calls, wall_s_by_task
from lmms_eval_mai.analysis.runs.records import BROKEN, TRACES, prompt_of_trace, records
from lmms_eval_mai.analysis.runs.setups import Setup, setup_of, setup_of_other
from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.agreement import AGREEMENT_OPTIONS, AgreementRules, Benchmark
from lmms_eval_mai.method.benchmarks import GENERIC, benchmark_of
from lmms_eval_mai.method.methods import LARGE
from lmms_eval_mai.method.prompts import VARIANTS
from lmms_eval_mai.method.repeats import THINKS, about_ends
from lmms_eval_mai.plugin import RESULTS

BUILT_IN = {"mmbench_en_dev_static": "mmbench_en_dev"}
"""lmms-eval's own tasks of the paper's benchmarks whose names differ from those of the benchmarks."""
_EMPTY = Frames(pd.DataFrame(), pd.DataFrame())  # until the samples of a run are read


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """One task of one lmms-eval command."""

    file: Path
    """The results file."""
    samples_file: Path
    task: str
    benchmark: str
    """The benchmark of our tasks; the name of the task for others."""
    setup: Setup
    ours: bool
    """Whether `mai_cascade` made the run, so that it has a trace."""
    samples: pd.DataFrame
    """One row for each document, sorted (`SAMPLES`)."""
    calls: pd.DataFrame
    """One row for each call (`CALLS`)."""
    rules: AgreementRules = field(default_factory=AgreementRules)
    wall_s: float | None = None
    """Time of answering. None: not known for this task, or calls of the task are shared."""
    engines: Mapping[Side, str] = field(default_factory=dict)
    """The engine of each model with its version and precision."""
    metrics: tuple[str, ...] = ()
    """The metrics of the task, the main one first."""
    is_other_task: bool = False
    """Whether the task is not one of this package: it has a prompt of its own and general rules of agreement."""
    is_part: bool = False
    """Whether `--limit` or `--offset` has left documents out."""
    is_replay: bool = False
    """Whether these are the result of a replay, such as the short answers inside a cascade, and not of a run."""

    @property
    def documents(self) -> int:
        return len(self.samples)

    @property
    def rules_of_task(self) -> Benchmark:
        """How answers are read, compared and scored."""
        return GENERIC if self.is_other_task else benchmark_of(self.benchmark)

    @property
    def replay_setup(self) -> Setup:
        """The setup of the methods that are replayed with the calls of this run."""
        setup = self.setup.replay_setup
        return replace(setup, variant=None) if self.is_other_task else setup

    @property
    def is_from_traces(self) -> bool:
        """Whether the answers are those of a file of traces, so that they have no scores."""
        return self.file.name.endswith(TRACES)


class FolderRuns(NamedTuple):
    """The runs in some folders, and a sentence for each gap."""

    runs: list[FinishedRun]
    gaps: list[str]


def read_runs(folders: Sequence[Path]) -> FolderRuns:
    """Read all runs in the folders and in their subfolders. A folder may also be a results file. Raises `ArgumentError`
    if a folder does not exist."""
    gaps: list[str] = []
    files: dict[Path, None] = {}
    for folder in folders:
        if not folder.exists():
            raise ArgumentError(f"{folder} does not exist. Give the --output_path of lmms-eval commands.")
        under = [folder] if folder.is_file() else [*folder.rglob("*results.json"), *folder.rglob(f"*{TRACES}")]
        # lmms-eval's MMBench writes submissions/mmbench_en_dev_static_results.json.
        here = sorted(file for file in under if file.parent.name != "submissions")
        files |= dict.fromkeys(here)
        if not here:
            gaps.append(f"{folder} has no run: it has no results file of lmms-eval.")
    read = [one for file in files for one in _read(file)]
    gaps += (one for one in read if isinstance(one, str))
    return FolderRuns([one for one in read if isinstance(one, FinishedRun)], gaps)


def _read(file: Path) -> Iterator[FinishedRun | str]:
    """Yield the runs of one results file, or that of a file of traces, and sentences about them."""
    if file.name.endswith(TRACES):
        setup = Setup(LARGE, "")  # until the samples are read
        run = FinishedRun(file, file, "traces", GENERIC.name, setup, True, *_EMPTY)
        yield from _complete(run, 0)
        return
    try:
        results = json.loads(file.read_bytes())
        groups = results.get("group_subtasks") or {}
        tasks = [task for task in results["results"] if not groups.get(task)]
        runs = [(_run(file, task, results), results["n-samples"][task]["effective"]) for task in tasks]
    except (OSError, *BROKEN) as error:
        cause = f"{type(error).__name__}: {error}"  # the repr of a UnicodeDecodeError has the whole file
        yield f"{file} is not used: it is broken, or of another version ({cause})."
        return
    found = [one for run, evaluated in runs for one in _complete(run, evaluated)]
    ours = {one.task: one.calls for one in found if isinstance(one, FinishedRun) and one.ours and len(one.calls)}
    is_resumed = not results.get("throughput")
    seconds = wall_s_by_task(ours, is_resumed) if ours else {}
    if seconds and is_resumed:
        yield f"{file}: the run was resumed. Its seconds leave out the time between its processes."
    for one in found:
        yield replace(one, wall_s=seconds.get(one.task)) if isinstance(one, FinishedRun) and one.ours else one


def _run(file: Path, task: str, results: Line) -> FinishedRun:
    """Return a run without its samples."""
    metadata = results["configs"][task].get("metadata")
    mai = (metadata.get("mai") if isinstance(metadata, dict) else None) or {}  # other tasks have a list
    variant, two_stage = VARIANTS.get(mai.get("variant") or "", (None, False))
    return FinishedRun(
        file=file,
        samples_file=file.with_name(f"{file.name.removesuffix(RESULTS)}_samples_{task}.jsonl"),
        task=task,
        benchmark=mai.get("benchmark") or BUILT_IN.get(task, task),
        setup=setup_of_other(results, variant, two_stage),
        ours=results["config"].get("model") == "mai_cascade",
        **_EMPTY._asdict(),
        wall_s=(results.get("throughput") or {}).get("total_elapsed_time") if len(results["results"]) == 1 else None,
        metrics=tuple(metric["metric"] for metric in results["configs"][task].get("metric_list") or ()),
        is_other_task=not mai,
        is_part=bool(results["config"].get("limit") or results["config"].get("offset")),
    )


# --- the samples of a run ---


def _complete(run: FinishedRun, evaluated: int) -> Iterator[FinishedRun | str]:
    """Yield the run with its samples, and sentences about them. `evaluated`: documents that lmms-eval evaluated."""
    if not run.samples_file.is_file():
        yield f"{run.file}: {run.task} is not used: it has no samples file. Give lmms-eval --log_samples."
        return
    frames, trace, unused = _read_samples(run)
    run = replace(run, **frames._asdict())
    yield from _doubts(run, evaluated, unused, is_traced=run.ours or bool(trace))
    try:
        yield replace(run, **_told_by(trace, run))
    except (*BROKEN, ArgumentError) as error:
        yield f"{run.samples_file} is not used: its traces are of another version ({error!r})."


def _read_samples(run: FinishedRun) -> tuple[Frames, Line, dict[str, int]]:
    """Read the lines of a samples file; of several lines about a document the last one. Return them without their
    texts, a trace that tells the setup of the run (empty: there is none), and the numbers of lines that are not
    used."""
    rows: dict[int, tuple[Line, list[Line]]] = {}
    broken = earlier = 0
    trace: Line = {}
    for record in records(run.samples_file, run.metrics):
        if record is None:
            broken += 1
            continue
        # Another model class of lmms-eval has token counts alone. Not all traces of a run have its threshold.
        if "exit" in record.trace and (not trace or "min_confidence" in record.trace.keys() - trace.keys()):
            trace = {name: value for name, value in record.trace.items() if name != "images"}
        doc_id = record.row["doc_id"]
        earlier += doc_id in rows
        rows[doc_id] = record.row, [call_row(doc_id, call) for call in record.calls]
    in_order = [rows[doc_id] for doc_id in sorted(rows)]
    unused = {
        "lines that are not JSON in UTF-8, or lack a field": broken,
        "lines that are not the last one of their document, perhaps of another run": earlier,
    }
    calls = [call for _, calls in in_order for call in calls]
    return samples_and_calls([row for row, _ in in_order], calls), trace, unused


def _doubts(run: FinishedRun, evaluated: int, unused: Mapping[str, int], is_traced: bool) -> Iterator[str]:
    """Yield a sentence about what is wrong with the samples of a run, if anything is."""
    samples, calls = run.samples, run.calls
    doubts = {
        **unused,
        "documents without a line, which failed or were not reached": max(0, evaluated - len(samples)),
        "documents without a score from 0 to 1": samples.score.isna().sum() * (not run.is_from_traces),
        "documents without a trace, which lmms-eval's response cache answered": samples.exit.isna().sum() * is_traced,
    }
    for side in SIDES:
        doubts[f"calls of the {side} model that a token limit cut off"] = calls.cut_off[calls.side == side].sum()
    thinkings = calls[calls.prompt.isin(THINKS)]
    stopped = (thinkings.endless & ~thinkings.cut_off).sum()
    ends = about_ends(len(thinkings), thinkings.cut_off.sum(), thinkings.endless.sum() - stopped, stopped)
    if any(doubts.values()):
        shown = "; ".join(f"{count} {what}" for what, count in doubts.items() if count)
        yield f"{run.samples_file}: there are {shown}. {ends}".rstrip()
    elif ends:
        yield f"{run.samples_file}: {ends}"


def _told_by(trace: Line, run: FinishedRun) -> dict[str, Any]:
    """Return the fields of a run that its trace tells, if there is one. Raises what a broken trace raises."""
    if not trace:
        return {}
    prompt = prompt_of_trace(trace) if run.is_from_traces else (run.setup.variant, run.setup.two_stage)
    setup, options = setup_of(trace, *prompt, run.benchmark), trace["options"]
    rules = AgreementRules(**{name: options[name] for name in AGREEMENT_OPTIONS if name in options})
    return {"ours": True, "setup": setup, "rules": rules, "engines": trace["engines"]}
