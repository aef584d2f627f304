"""Reads lmms-eval's output folders.

A folder has `<time>_results.json`, `<time>_samples_<task>.jsonl` and `<time>_mai_cascade.json`. A results file gives
one `Run` for each of its tasks, with a table of its samples and a table of its calls. The texts of calls are not kept;
`records` reads them again. What is missing or broken becomes a sentence, and the rest is used.
"""

import json
import math
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
from lmms_eval_mai.reports.rows import CALLS, SAMPLES, Line, Record, answers_of, table_of
from lmms_eval_mai.run.totals import FIGURES, FORMAT, RESULTS

BUILT_IN = {name: name for name in BENCHMARKS if name != "shapes"} | {"mmbench_en_dev_static": "mmbench_en_dev"}
"""lmms-eval's own tasks of the paper's benchmarks."""
BROKEN = (LookupError, TypeError, ValueError, AttributeError, OverflowError)


@dataclass(frozen=True, eq=False)
class Run:
    """One task of one lmms-eval command."""

    file: Path
    """The results file."""
    samples_file: Path | None
    task: str
    benchmark: str
    """The benchmark of our tasks; the name of the task for others."""
    method: Method
    ours: bool
    """Whether `mai_cascade` made the run, so that it has a trace."""
    metrics: dict[str, float]
    """lmms-eval's metrics of the task."""
    number: int
    """Documents that lmms-eval evaluated."""
    original: int
    """Documents of the data set."""
    samples: pd.DataFrame
    """One row for each answer, sorted by document (`SAMPLES`)."""
    calls: pd.DataFrame
    """One row for each call (`CALLS`)."""
    rules: AgreementRules = field(default_factory=AgreementRules)
    wall_s: float | None = None
    """Time of answering. None: not known for this task, or calls of the task are shared."""
    engine: str = ""
    """The kind of engine: vllm, openai, transformers or scripted. Empty: not known."""
    not_answered: int = 0
    calibrated_with: frozenset[str] = frozenset()
    """The images of the documents that chose the threshold of the first check."""
    derived: bool = False
    """Whether these are the short answers inside a cascade instead of a run of their own."""

    @property
    def documents(self) -> int:
        """The number of documents."""
        return self.samples.index.nunique() if len(self.samples) else self.number


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
    done: set[Path] = set()
    for folder in folders:
        if not folder.exists():
            raise ArgumentError(f"{folder} does not exist. Give the --output_path of lmms-eval commands.")
        # lmms-eval's MMBench writes submissions/mmbench_en_dev_static_results.json.
        under = sorted(file for file in folder.rglob("*results.json") if file.parent.name != "submissions")
        files = [folder] if folder.is_file() else under
        for file in files:
            if file.resolve() not in done:  # a subfolder may be given too
                done.add(file.resolve())
                _read_results(file, found)
        traced = sorted(folder.rglob(f"*{traces.ENDING}"))
        found.runs += [_with_samples(_of_traces(file), found) for file in traced]
        if not files and not traced:
            found.gaps.append(f"{folder} has no run that can be used: it has no results file of lmms-eval 0.7.")
        for file in sorted(folder.rglob("*_samples_*.jsonl")):
            time = file.name.partition("_samples_")[0]
            if not (file.parent / f"{time}{RESULTS}").is_file():
                found.gaps.append(
                    f"{file} is not used: it has no results file beside it, so its run broke off while it wrote."
                )
    return found


def records(run: Run) -> Iterator[Record]:
    """Read the first answer to each document of a run again, with its texts, one at a time. Nothing if the run has no
    samples file."""
    return (answers[0] for answers in _lines(run) if answers)


def _of_traces(file: Path) -> Run:
    """Return the run of a file of traces, without its samples."""
    return Run(
        file=file,
        samples_file=file,
        task=traces.TASK,
        benchmark=GENERIC.name,
        method=traces.method_of(file),
        ours=True,
        metrics={},
        number=0,
        original=0,
        samples=table_of(SAMPLES).rename_axis("doc_id"),
        calls=table_of(CALLS),
    )


def _read_results(file: Path, found: Found) -> None:
    """Add the runs of one results file, and the sentences about it."""
    try:
        results = json.loads(file.read_text(encoding="utf-8"))
        known = {name: metrics for name, metrics in results["results"].items() if isinstance(metrics, dict)}
    except (OSError, *BROKEN):
        found.gaps.append(f"{file} is not used: it is not a results file of lmms-eval 0.7, or it is broken.")
        return
    if "configs" not in results or "n-samples" not in results:
        found.gaps.append(
            f"{file} is of another version of lmms-eval: only the fields that this version knows are used."
        )
    figures = _figures(file, found)
    groups = results.get("group_subtasks")
    groups = groups if isinstance(groups, dict) else {}
    for task, metrics in known.items():
        if groups.get(task):
            continue
        try:
            run = _run(file, task, metrics, results, figures)
        except BROKEN:  # another version has other fields
            found.gaps.append(
                f"{file}: {task} is not used, because a field of the results or of the figures is broken."
            )
            continue
        found.runs.append(_with_samples(run, found))


def _figures(file: Path, found: Found) -> Line:
    """Return the figures of `mai_cascade` beside a results file. Empty if there are none."""
    path = file.with_name(file.name.removesuffix(RESULTS) + FIGURES)
    if not path.is_file():
        return {}
    try:
        figures: Line = json.loads(path.read_text(encoding="utf-8"))
        if figures["format"] == FORMAT:
            return figures
    except (OSError, *BROKEN):
        pass
    found.gaps.append(f"{path} is not used: it is broken, or of another version of lmms-eval-mai.")
    return {}


def _with_samples(run: Run, found: Found) -> Run:
    """Return the run with its samples and calls, and add a sentence for each thing that is wrong with them."""
    if run.samples_file is None:
        found.gaps.append(
            f"{run.file}: {run.task} has no samples file, so only its total score is used. Run lmms-eval with "
            "--log_samples."
        )
        return run
    rows: dict[int, list[tuple[Line, list[Line]]]] = {}
    broken = unscored_repeats = 0
    for answers in _lines(run):
        broken += not answers
        kept = [one for one in answers if not one.row["repeat"] or not math.isnan(one.row["score"])]
        unscored_repeats += len(answers) - len(kept)
        for one in answers[:1]:
            # The texts would need much memory.
            rows[one.row["doc_id"]] = [(one.row, [{**call, "text": None} for call in one.calls]) for one in kept]
    in_order = [one for doc_id in sorted(rows) for one in rows[doc_id]]
    samples = table_of({"doc_id": CALLS["doc_id"], **SAMPLES}, [row for row, _ in in_order]).set_index("doc_id")
    calls = table_of(CALLS, [call for _, of_answer in in_order for call in of_answer])
    run = replace(run, samples=samples, calls=calls, number=run.number or len(rows))
    found.gaps += _doubts(run, broken, unscored_repeats)
    return run


def _doubts(run: Run, broken: int, unscored_repeats: int) -> Iterator[str]:
    """Return a sentence for each thing that is wrong with a samples file. Arguments: the numbers of lines that cannot
    be read, and of repeats without a score."""
    file, first = run.samples_file, run.samples[run.samples.repeat == 0]
    missing, unscored, untraced = run.number - len(first), first.score.isna().sum(), first.exit.isna().sum()
    if broken:
        yield f"{file}: {_count(broken, 'line')} cannot be read. Did the run break off?"
    if missing > 0:
        why = ", because they failed." if run.not_answered >= missing else ". Did the run break off?"
        yield f"{file}: {missing} of {run.number} documents have no line{why}"
    if unscored and run.task != traces.TASK:
        yield f"{file}: {_count(unscored, 'document')} without a score from 0 to 1; the total score is used."
    if run.ours and untraced:
        yield (
            f"{file}: {_count(untraced, 'document')} without a trace, because lmms-eval's response cache answered. "
            "There are no exits, tokens and seconds for them."
        )
    if unscored_repeats:
        yield f"{file}: {_count(unscored_repeats, 'repeated answer')} (-n) without a known score left out."


def _run(file: Path, task: str, metrics: Line, results: Line, figures: Line) -> Run:
    metadata = ((results.get("configs") or {}).get(task) or {}).get("metadata")
    mai = (metadata.get("mai") if isinstance(metadata, dict) else None) or {}  # other tasks have a list
    variant, two_stage = VARIANTS.get(mai.get("variant") or "", (None, False))
    counts = (results.get("n-samples") or {}).get(task) or {}
    path = file.with_name(f"{file.name.removesuffix(RESULTS)}_samples_{task}.jsonl")
    arguments = methods.arguments_of(results)
    model = str((results.get("config") or {}).get("model") or results.get("model_source") or "model")
    ours = bool(figures) or model == "mai_cascade"
    of_task, engines = (figures.get("tasks") or {}).get(task) or {}, figures.get("engines") or {}
    sides = [of_task[side] for side in SIDES if side in of_task]
    return Run(
        file=file,
        samples_file=path if path.is_file() else None,
        task=task,
        benchmark=str(mai.get("benchmark") or BUILT_IN.get(task, task)),
        method=methods.method(arguments, figures, variant, two_stage, mai.get("benchmark"))
        if ours
        else methods.method_of_other(model, arguments, variant, two_stage),
        ours=ours,
        metrics=_numbers(metrics),
        number=int(counts.get("effective") or 0),
        original=int(counts.get("original") or 0),
        samples=table_of(SAMPLES).rename_axis("doc_id"),
        calls=table_of(CALLS),
        rules=methods.rules_of(arguments),
        wall_s=None if any(side.get("shared_calls") for side in sides) else _wall_s(of_task, results),
        engine=", ".join(dict.fromkeys(one["engine"] for one in engines.values())),
        not_answered=int(of_task.get("not_answered") or 0),
        calibrated_with=frozenset(((figures.get("first_check") or {}).get("calibration") or {}).get("images") or ()),
    )


def _wall_s(of_task: Line, results: Line) -> float | None:
    """Return the time of answering: that of the task, or lmms-eval's if the command had a single task."""
    wall_s = of_task.get("wall_s")
    if not wall_s and len(results["results"]) == 1:
        wall_s = (results.get("throughput") or {}).get("total_elapsed_time")
    return float(wall_s) if wall_s and math.isfinite(wall_s) else None


def _numbers(metrics: Line) -> dict[str, float]:
    """Return the metrics of a task: `pope_f1_score,none` becomes `pope_f1_score`."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, int | float) and math.isfinite(value) and "stderr" not in name:
            found.setdefault(name.partition(",")[0], float(value))
    return found


def _lines(run: Run) -> Iterator[list[Record]]:
    """Yield the answers of one line of a samples file after another: one, or one for each repeat (`-n`); none for a
    line that cannot be read."""
    if run.samples_file is None:
        return
    with run.samples_file.open(encoding="utf-8", newline="\n") as lines:
        for text in filter(str.strip, lines):
            try:
                line = json.loads(text)
                answers = answers_of(run.benchmark, traces.line_of(line) if run.task == traces.TASK else line)
            except BROKEN:
                answers = []
            yield answers


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
