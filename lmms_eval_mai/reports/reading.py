"""Reads lmms-eval's output folders: `<time>_results.json`, `<time>_samples_<task>.jsonl` and `<time>_mai_cascade.json`.

A results file gives one run for each of its tasks. What is missing or broken becomes a sentence, and the rest is used.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.agreement import AgreementRules
from lmms_eval_mai.paper.benchmarks import BENCHMARKS
from lmms_eval_mai.paper.prompts import VARIANTS
from lmms_eval_mai.reports import attention_tables, command
from lmms_eval_mai.reports.records import Document, Method, Run, SampleRecord
from lmms_eval_mai.reports.report import Table
from lmms_eval_mai.reports.samples import Reader

KNOWN_VERSIONS = ("0.7.", "unknown")
"""Versions of lmms-eval whose fields are known here. The figures name them; lmms-eval's own files do not."""
RESULTS, FIGURES = "_results.json", "_mai_cascade.json"
BUILT_IN = {name: name for name in BENCHMARKS if name != "shapes"} | {"mmbench_en_dev_static": "mmbench_en_dev"}
"""lmms-eval's own tasks of the paper's benchmarks."""


@dataclass
class Found:
    """The runs in some folders, and a sentence for each gap."""

    runs: list[Run] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    """The tables of `lmms-eval-mai attention`."""


def read(folders: Sequence[Path]) -> Found:
    """Read all runs in the folders and in their subfolders. A folder may also be a results file.

    Raises `ArgumentError` if a folder does not exist or if there is no run in any of them.
    """
    found = Found()
    done: set[Path] = set()
    for folder in folders:
        if not folder.exists():
            raise ArgumentError(f"{folder} does not exist. Give the --output_path of lmms-eval commands.")
        before = len(found.runs)
        files = {file.resolve(): file for file in _results_files(folder)}
        new = {path: file for path, file in files.items() if path not in done}  # a subfolder may be given too
        for file in new.values():
            _read_results(file, found)
        outputs = {output.resolve(): output for output in attention_tables.folders(folder)}
        for output in (output for path, output in outputs.items() if path not in done):
            _read_attention(output, found)
        done |= files.keys() | outputs.keys()
        if len(found.runs) == before and (new or not files) and not outputs:
            found.gaps.append(f"{folder} has no run that can be used: it has no results file of lmms-eval 0.7.")
        found.gaps += _orphans(folder)
    if not found.runs and not found.tables:
        raise ArgumentError(
            f"{', '.join(map(str, folders))}: there is no run of lmms-eval. Run lmms-eval with --output_path and "
            f"--log_samples, and give that path. {' '.join(found.gaps)}"
        )
    return found


def samples(run: Run) -> Iterator[SampleRecord]:
    """Read the samples of a run again, with their texts, one at a time. Nothing if the run has no samples file."""
    if run.samples_file is not None:
        yield from Reader(run).records()


def _results_files(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    # lmms-eval's MMBench writes submissions/mmbench_en_dev_static_results.json.
    files = [file for file in folder.rglob("*results.json") if file.parent.name != "submissions"]
    return sorted(files)


def _read_attention(folder: Path, found: Found) -> None:
    """Add the tables of one task of `lmms-eval-mai attention`."""
    try:
        tables = attention_tables.tables(folder)
    except ValueError as error:
        found.gaps.append(str(error))
        return
    for table in tables:
        keys = [table.key, *(f"{table.key}-{number}" for number in range(2, len(found.tables) + 2))]
        known = {one.key for one in found.tables}  # the same task with other models
        found.tables.append(replace(table, key=next(key for key in keys if key not in known)))


def _orphans(folder: Path) -> Iterator[str]:
    """Return a sentence for each samples file without a results file: its run broke off while it wrote."""
    for file in sorted(folder.rglob("*_samples_*.jsonl")) if folder.is_dir() else ():
        time = file.name.partition("_samples_")[0]
        if not (file.parent / f"{time}{RESULTS}").is_file():
            yield f"{file} is not used: it has no results file beside it, so its run broke off while it wrote."


def _read_results(file: Path, found: Found) -> None:
    """Add the runs of one results file, and the sentences about it."""
    try:
        results = json.loads(file.read_text(encoding="utf-8"))
        tasks = results["results"]
        known = {name: metrics for name, metrics in tasks.items() if isinstance(metrics, dict)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        found.gaps.append(f"{file} is not used: it is not a results file of lmms-eval 0.7, or it is broken.")
        return
    if "configs" not in results or "n-samples" not in results:
        found.gaps.append(
            f"{file} is of another version of lmms-eval: only the fields that this version knows are used."
        )
    figures = _figures(file, found)
    version = figures.get("lmms_eval_version")
    if isinstance(version, str) and not version.startswith(KNOWN_VERSIONS):
        found.gaps.append(
            f"{file} is of lmms-eval {version}: its fields may mean something else than those of lmms-eval 0.7."
        )
    groups = results.get("group_subtasks")
    for task, metrics in known.items():
        if not (isinstance(groups, dict) and groups.get(task)):
            _read_task(file, task, metrics, results, figures, found)


def _figures(file: Path, found: Found) -> dict[str, Any]:
    """Return the figures of `mai_cascade` beside a results file. Empty if there are none."""
    path = file.with_name(file.name.removesuffix(RESULTS) + FIGURES)
    if not path.is_file():
        return {}
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(figures, dict) and figures.get("format") == 1:
            return figures
        found.gaps.append(f"{path} is not used: its format is not known to this version of lmms-eval-mai.")
    except (OSError, ValueError):
        found.gaps.append(f"{path} is not used: it is broken.")
    return {}


def _read_task(
    file: Path, task: str, metrics: dict[str, Any], results: dict[str, Any], figures: dict[str, Any], found: Found
) -> None:
    """Add the run of one task, with its documents."""
    try:
        run = _run(file, task, metrics, results, figures)
    except (LookupError, TypeError, ValueError, AttributeError):  # another version has other fields
        found.gaps.append(f"{file}: {task} is not used, because a field of the results or of the figures is broken.")
        return
    if run.samples_file is None:
        found.gaps.append(
            f"{file}: {task} has no samples file, so only its total score is used. Run lmms-eval with --log_samples."
        )
        found.runs.append(run)
        return
    reader = Reader(run)
    documents: dict[int, Document] = {}
    repeated = 0
    for record in reader.records():
        repeated += record.document.doc_id in documents
        documents[record.document.doc_id] = record.document
    found.gaps += reader.gaps(len(documents), repeated)
    ordered = tuple(documents[doc_id] for doc_id in sorted(documents))
    found.runs.append(replace(run, documents=ordered, number=run.number or len(ordered)))


def _run(file: Path, task: str, metrics: dict[str, Any], results: dict[str, Any], figures: dict[str, Any]) -> Run:
    """Return the run of one task without its documents."""
    config = (results.get("configs") or {}).get(task) or {}
    metadata = config.get("metadata") or {}
    mai = metadata.get("mai") if isinstance(metadata, dict) else None  # other tasks have a list
    benchmark = (mai or {}).get("benchmark") or BUILT_IN.get(task, task)
    variant, two_stage = VARIANTS.get((mai or {}).get("variant") or "", (None, False))
    counts = (results.get("n-samples") or {}).get(task) or {}
    path = file.with_name(f"{file.name.removesuffix(RESULTS)}_samples_{task}.jsonl")
    given = command.read(results)
    ours = bool(figures) or given.model == "mai_cascade"
    other = Method("alone", given.name, "", variant, two_stage, given.options())
    of_task = (figures.get("tasks") or {}).get(task) or {}
    return Run(
        file=file,
        samples_file=path if path.is_file() else None,
        task=task,
        benchmark=str(benchmark),
        method=command.method(given, figures, variant, two_stage) if ours else other,
        ours=ours,
        metrics=_numbers(metrics),
        number=int(counts.get("effective") or 0),
        original=int(counts.get("original") or 0),
        rules=AgreementRules(**given.rules()),
        wall_s=_wall_s(of_task, results),
        engine=", ".join(dict.fromkeys(one["engine"] for one in (figures.get("engines") or {}).values())),
        speculation=_speculation(of_task),
        not_answered=int(of_task.get("not_answered") or 0),
    )


def _wall_s(of_task: dict[str, Any], results: dict[str, Any]) -> float | None:
    """Return the time of answering: that of the task, or lmms-eval's if the command had a single task. None if calls of
    the task are shared."""
    if any(of_task.get(side, {}).get("shared_calls") for side in SIDES):
        return None
    wall_s = of_task.get("wall_s")
    if not wall_s and len(results["results"]) == 1:
        wall_s = (results.get("throughput") or {}).get("total_elapsed_time")
    return float(wall_s) if wall_s and math.isfinite(wall_s) else None


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of a task: `pope_f1_score,none` becomes `pope_f1_score`."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, int | float) and math.isfinite(value) and "stderr" not in name:
            found.setdefault(name.partition(",")[0], float(value))
    return found


def _speculation(of_task: dict[str, Any]) -> tuple[int, int] | None:
    sides = [of_task[side] for side in ("small", "large") if "proposed_tokens" in of_task.get(side, {})]
    if not sides or any(side["proposed_tokens"] is None for side in sides):
        return None
    return sum(side["proposed_tokens"] for side in sides), sum(side["accepted_tokens"] for side in sides)
