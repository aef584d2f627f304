"""Reads lmms-eval's output folders.

A folder has `<time>_results.json` and `<time>_samples_<task>.jsonl`. A results file gives one `Run` for each of its
tasks, with a frame of its samples and a frame of its calls. The texts of calls are not kept; `records` reads them
again. What is missing or broken becomes a sentence, and the rest is used.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from lmms_eval_mai.analysis.frames import call_row, frames, wall_s_by_task
from lmms_eval_mai.analysis.runs import traces
from lmms_eval_mai.analysis.runs.rows import Line, Record, record_of
from lmms_eval_mai.analysis.runs.setups import Setup, rules_of, setup_of, setup_of_other
from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.agreement import AgreementRules
from lmms_eval_mai.method.benchmarks import GENERIC
from lmms_eval_mai.method.methods import LARGE
from lmms_eval_mai.method.prompts import VARIANTS
from lmms_eval_mai.plugin import RESULTS

BUILT_IN = {"mmbench_en_dev_static": "mmbench_en_dev"}
"""lmms-eval's own tasks of the paper's benchmarks whose names differ from those of the benchmarks."""
NO_SETUP = Setup(LARGE, "")
"""That of a run whose samples are not read yet."""
BROKEN = (LookupError, TypeError, ValueError, AttributeError, OverflowError)


@dataclass(frozen=True, eq=False)
class Run:
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
    is_part: bool = False
    """Whether `--limit` or `--offset` has left documents out."""
    derived: bool = False
    """Whether these are the result of a replay, such as the short answers inside a cascade, and not of a run."""

    @property
    def documents(self) -> int:
        """The number of documents."""
        return len(self.samples)


@dataclass
class FolderRuns:
    """The runs in some folders, and a sentence for each gap."""

    runs: list[Run] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)


def read_runs(folders: Sequence[Path]) -> FolderRuns:
    """Read all runs in the folders and in their subfolders. A folder may also be a results file.

    Raises `ArgumentError` if a folder does not exist.
    """
    result = FolderRuns()
    files: dict[Path, None] = {}
    for folder in folders:
        if not folder.exists():
            raise ArgumentError(f"{folder} does not exist. Give the --output_path of lmms-eval commands.")
        under = [folder] if folder.is_file() else [*folder.rglob("*results.json"), *folder.rglob(f"*{traces.ENDING}")]
        # lmms-eval's MMBench writes submissions/mmbench_en_dev_static_results.json.
        here = sorted(file for file in under if file.parent.name != "submissions")
        files |= dict.fromkeys(here)
        if not here:
            result.gaps.append(f"{folder} has no run: it has no results file of lmms-eval.")
    for file in files:
        if file.name.endswith(traces.ENDING):
            run = Run(file, file, traces.TASK, GENERIC.name, NO_SETUP, True, *frames([], []))
            _add(run, 0, result)
        else:
            _read_results(file, result)
    return result


def records(run: Run) -> Iterator[Record]:
    """Read the answers of a run again, with their texts, one at a time."""
    return (record for record in _lines(run) if record is not None)


def _read_results(file: Path, result: FolderRuns) -> None:
    """Add the runs of one results file, and the sentences about it."""
    try:
        results = json.loads(file.read_bytes())
        groups = results.get("group_subtasks") or {}
        tasks = [task for task in results["results"] if not groups.get(task)]
        runs = [(_run(file, task, results), results["n-samples"][task]["effective"]) for task in tasks]
    except (OSError, *BROKEN) as error:
        cause = f"{type(error).__name__}: {error}"  # the repr of a UnicodeDecodeError has the whole file
        result.gaps.append(f"{file} is not used: it is broken, or of another version ({cause}).")
        return
    before = len(result.runs)
    for run, number in runs:
        if run.samples_file.is_file():
            _add(run, number, result)
        else:
            result.gaps.append(f"{file}: {run.task} is not used: it has no samples file. Give lmms-eval --log_samples.")
    ours = {run.task: run.calls for run in result.runs[before:] if run.ours and len(run.calls)}
    seconds = wall_s_by_task(ours) if ours and results.get("throughput") else {}  # a resumed run has no throughput
    result.runs[before:] = [
        replace(run, wall_s=seconds.get(run.task)) if run.ours else run for run in result.runs[before:]
    ]


def _add(run: Run, number: int, result: FolderRuns) -> None:
    """Add the run with its samples and calls, and a sentence for each thing that is wrong with them. `number`:
    documents that lmms-eval evaluated."""
    rows: dict[int, tuple[Line, list[Line]]] = {}
    broken = lines = 0
    first: Line = {}  # a trace that tells the setup of the run
    for record in _lines(run):
        if record is None:
            broken += 1
        else:
            lines += 1
            is_trace = "exit" in record.trace  # another model class of lmms-eval has token counts alone
            if is_trace and (not first or ("min_confidence" in record.trace and "min_confidence" not in first)):
                first = {name: value for name, value in record.trace.items() if name != "images"}
            doc_id = record.row["doc_id"]
            rows[doc_id] = record.row, [call_row(doc_id, call) for call in record.calls]
    in_order = [rows[doc_id] for doc_id in sorted(rows)]
    samples, calls = frames([row for row, _ in in_order], [call for _, calls in in_order for call in calls])
    doubts = {
        "lines that are not JSON in UTF-8, or lack a field": broken,
        "lines that are not the last one of their document, perhaps of another run": lines - len(rows),
        "documents without a line, which failed or were not reached": max(0, number - len(samples)),
        "documents without a score from 0 to 1": 0 if run.task == traces.TASK else int(samples.score.isna().sum()),
        "documents without a trace, which lmms-eval's response cache answered": samples.exit.isna().sum()
        * (run.ours or bool(first)),
    }
    for side in SIDES:
        doubts[f"calls of the {side} model that a token limit cut off"] = int(calls.cut_off[calls.side == side].sum())
    if any(doubts.values()):
        shown = "; ".join(f"{count} {what}" for what, count in doubts.items() if count)
        result.gaps.append(f"{run.samples_file}: there are {shown}.")
    run = replace(run, samples=samples, calls=calls)
    if first:
        prompt = traces.prompt_of(first) if run.task == traces.TASK else (run.setup.variant, run.setup.two_stage)
        try:
            setup, rules = setup_of(first, *prompt, run.benchmark), rules_of(first["options"])
            run = replace(run, ours=True, setup=setup, rules=rules, engines=first["engines"])
        except (*BROKEN, ArgumentError) as error:
            result.gaps.append(f"{run.samples_file} is not used: its traces are of another version ({error!r}).")
            return
    result.runs.append(run)


def _run(file: Path, task: str, results: Line) -> Run:
    """Return a run without its samples."""
    metadata = results["configs"][task].get("metadata")
    mai = (metadata.get("mai") if isinstance(metadata, dict) else None) or {}  # other tasks have a list
    variant, two_stage = VARIANTS.get(mai.get("variant") or "", (None, False))
    return Run(
        file=file,
        samples_file=file.with_name(f"{file.name.removesuffix(RESULTS)}_samples_{task}.jsonl"),
        task=task,
        benchmark=mai.get("benchmark") or BUILT_IN.get(task, task),
        setup=setup_of_other(results, variant, two_stage),
        ours=results["config"].get("model") == "mai_cascade",
        **frames([], [])._asdict(),
        wall_s=(results.get("throughput") or {}).get("total_elapsed_time") if len(results["results"]) == 1 else None,
        is_part=bool(results["config"].get("limit") or results["config"].get("offset")),
    )


def _lines(run: Run) -> Iterator[Record | None]:
    """Yield one line of a samples file after another; None for a line that cannot be read."""
    with run.samples_file.open("rb") as lines:
        for text in filter(bytes.strip, lines):
            try:
                line = json.loads(text.decode("utf-8-sig"))
                yield record_of(run.benchmark, traces.line_of(line) if run.task == traces.TASK else line)
            except BROKEN:
                yield None
