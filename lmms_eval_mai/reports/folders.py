"""Reads lmms-eval's output folders.

A folder has `<time>_results.json`, `<time>_samples_<task>.jsonl` and `<time>_mai_cascade.json`. A results file gives
one `Run` for each of its tasks, with a table of its samples and a table of its calls. The texts of calls are not kept;
`records` reads them again. What is missing or broken becomes a sentence, and the rest is used.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.agreement import AgreementRules
from lmms_eval_mai.paper.benchmarks import BENCHMARKS, GENERIC
from lmms_eval_mai.paper.prompts import VARIANTS
from lmms_eval_mai.reports import methods, traces
from lmms_eval_mai.reports.methods import Method
from lmms_eval_mai.reports.rows import CALL_FIELDS, Line, Record, calls_table, record_of, samples_table
from lmms_eval_mai.run.totals import FIGURES, FORMAT, RESULTS

BUILT_IN = {name: name for name in BENCHMARKS if name != "shapes"} | {"mmbench_en_dev_static": "mmbench_en_dev"}
"""lmms-eval's own tasks of the paper's benchmarks."""
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
    method: Method
    ours: bool
    """Whether `mai_cascade` made the run, so that it has a trace."""
    samples: pd.DataFrame
    """One row for each document, sorted (`SAMPLES`)."""
    calls: pd.DataFrame
    """One row for each call (`CALLS`)."""
    rules: AgreementRules = field(default_factory=AgreementRules)
    wall_s: float | None = None
    """Time of answering. None: not known for this task, or calls of the task are shared."""
    calibrated_with: frozenset[str] = frozenset()
    """The images of the documents that chose the threshold of the first check."""
    is_part: bool = False
    """Whether `--limit` or `--offset` has left documents out."""
    derived: bool = False
    """Whether these are the short answers inside a cascade instead of a run of their own."""

    @property
    def documents(self) -> int:
        """The number of documents."""
        return len(self.samples)


@dataclass
class Found:
    """The runs in some folders, and a sentence for each gap."""

    runs: list[Run] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)


def read_runs(folders: Sequence[Path]) -> Found:
    """Read all runs in the folders and in their subfolders. A folder may also be a results file.

    Raises `ArgumentError` if a folder does not exist.
    """
    found = Found()
    files: dict[Path, None] = {}
    for folder in folders:
        if not folder.exists():
            raise ArgumentError(f"{folder} does not exist. Give the --output_path of lmms-eval commands.")
        under = [folder] if folder.is_file() else [*folder.rglob("*results.json"), *folder.rglob(f"*{traces.ENDING}")]
        # lmms-eval's MMBench writes submissions/mmbench_en_dev_static_results.json.
        here = sorted(file for file in under if file.parent.name != "submissions")
        files |= dict.fromkeys(here)
        if not here:
            found.gaps.append(f"{folder} has no run: it has no results file of lmms-eval.")
    for file in files:
        if file.name.endswith(traces.ENDING):
            method = traces.method_of(file)
            run = Run(file, file, traces.TASK, GENERIC.name, method, True, samples_table([]), calls_table([]))
            found.runs.append(_with_samples(run, 0, found))
        else:
            _read_results(file, found)
    return found


def records(run: Run) -> Iterator[Record]:
    """Read the answers of a run again, with their texts, one at a time."""
    return (record for record in _lines(run) if record is not None)


def _read_results(file: Path, found: Found) -> None:
    """Add the runs of one results file, and the sentences about it."""
    try:
        results = json.loads(file.read_text(encoding="utf-8"))
        figures_file = file.with_name(file.name.removesuffix(RESULTS) + FIGURES)
        figures = json.loads(figures_file.read_text(encoding="utf-8")) if figures_file.is_file() else {}
        if figures and figures["format"] != FORMAT:
            raise ValueError(f"{figures_file.name} is of another version of lmms-eval-mai")
        groups = results.get("group_subtasks") or {}
        tasks = [task for task in results["results"] if not groups.get(task)]
        runs = [(_run(file, task, results, figures), results["n-samples"][task]["effective"]) for task in tasks]
    except (OSError, *BROKEN) as error:
        found.gaps.append(f"{file} is not used: it is broken, or of another version ({error!r}).")
        return
    for run, number in runs:
        if run.samples_file.is_file():
            found.runs.append(_with_samples(run, number, found))
        else:
            found.gaps.append(f"{file}: {run.task} is not used: it has no samples file. Give lmms-eval --log_samples.")


def _with_samples(run: Run, number: int, found: Found) -> Run:
    """Return the run with its samples and calls, and add a sentence for each thing that is wrong with them. `number`:
    documents that lmms-eval evaluated."""
    rows: dict[int, tuple[Line, list[Line]]] = {}
    broken = lines = 0
    for record in _lines(run):
        if record is None:
            broken += 1
        else:
            lines += 1
            doc_id = record.row["doc_id"]
            # The texts would need much memory.
            calls = [{"doc_id": doc_id, **{name: call.get(name) for name in CALL_FIELDS}} for call in record.calls]
            rows[doc_id] = record.row, calls
    in_order = [rows[doc_id] for doc_id in sorted(rows)]
    samples, calls = samples_table([row for row, _ in in_order]), calls_table([one for _, of in in_order for one in of])
    doubts = {
        "lines that cannot be read": broken,
        "lines that are not the last one of their document, perhaps of another run": lines - len(rows),
        "documents without a line, which failed or were not reached": max(0, number - len(samples)),
        "documents without a score from 0 to 1": 0 if run.task == traces.TASK else int(samples.score.isna().sum()),
        "documents without a trace, which lmms-eval's response cache answered": samples.exit.isna().sum() * run.ours,
    }
    for side in SIDES:
        doubts[f"calls of the {side} model that a token limit cut off"] = int(calls.cut_off[calls.side == side].sum())
    if any(doubts.values()):
        shown = "; ".join(f"{count} {what}" for what, count in doubts.items() if count)
        found.gaps.append(f"{run.samples_file}: there are {shown}.")
    return replace(run, samples=samples, calls=calls)


def _run(file: Path, task: str, results: Line, figures: Line) -> Run:
    """Return a run without its samples."""
    metadata = results["configs"][task].get("metadata")
    mai = (metadata.get("mai") if isinstance(metadata, dict) else None) or {}  # other tasks have a list
    variant, two_stage = VARIANTS.get(mai.get("variant") or "", (None, False))
    arguments = methods.arguments_of(results)
    if figures:
        method = methods.method(arguments, figures, variant, two_stage, mai.get("benchmark"))
        of_task = figures["tasks"].get(task) or {}
        is_shared = any(of_task.get(side, {}).get("shared_calls") for side in SIDES)
        wall_s = None if is_shared else of_task.get("wall_s")
    else:
        method = methods.method_of_other(results["config"]["model"], arguments, variant, two_stage)
        # lmms-eval has the time of the whole command.
        wall_s = (results.get("throughput") or {}).get("total_elapsed_time") if len(results["results"]) == 1 else None
    return Run(
        file=file,
        samples_file=file.with_name(f"{file.name.removesuffix(RESULTS)}_samples_{task}.jsonl"),
        task=task,
        benchmark=mai.get("benchmark") or BUILT_IN.get(task, task),
        method=method,
        ours=bool(figures),
        samples=samples_table([]),
        calls=calls_table([]),
        rules=methods.rules_of(arguments),
        wall_s=wall_s,
        is_part=bool(results["config"].get("limit") or results["config"].get("offset")),
        calibrated_with=frozenset(((figures.get("first_check") or {}).get("calibration") or {}).get("images") or ()),
    )


def _lines(run: Run) -> Iterator[Record | None]:
    """Yield one line of a samples file after another; None for a line that cannot be read."""
    with run.samples_file.open(encoding="utf-8", newline="\n") as lines:
        for text in filter(str.strip, lines):
            try:
                line = json.loads(text)
                yield record_of(run.benchmark, traces.line_of(line) if run.task == traces.TASK else line)
            except BROKEN:
                yield None
