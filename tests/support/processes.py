"""Evaluations in processes of their own that can be killed: forked from a server that has imported lmms-eval once, so
that each costs a second and not twenty."""

import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
from pyarrow import Table, parquet

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["lmms_eval.evaluator", "lmms_eval.tasks", "lmms_eval_mai.harness.model"])

DEMO_DOCUMENTS = 150
"""Of `shapes_s`, on which runs of the demo pair are compared."""

POPE = Path("lmms-lab-encoder") / "POPE"


def large_pope(drawn_data: Path, folder: Path, rows: int) -> Path:
    """A data folder whose POPE has `rows` documents, over and over those of the drawn one."""
    drawn = parquet.read_table(drawn_data / POPE / "data" / "test.parquet")
    documents = [{**row, "question_id": str(i)} for i, row in enumerate(drawn.to_pylist() * (rows // len(drawn) + 1))]
    (folder / POPE / "data").mkdir(parents=True)
    name = f"{folder.name}-{rows}.parquet"  # datasets keys its cache on names
    parquet.write_table(Table.from_pylist(documents[:rows], schema=drawn.schema), folder / POPE / "data" / name)
    card = (drawn_data / POPE / "README.md").read_text()
    (folder / POPE / "README.md").write_text(card.replace("test.parquet", name))
    return folder


def scripts(folder: Path, task: str, rows: int, seconds: float) -> dict[str, str]:
    """Scripts of both sides in which the documents leave at all three exits, with tokens that differ from call to
    call."""
    rng = random.Random(5)
    lines: dict[str, list[str]] = {"small": [], "large": []}
    for doc_id in range(rows):
        way = doc_id % 3
        large = "Yes" if rng.random() < 0.5 else "No"
        other = "No" if large == "Yes" else "Yes"
        texts = {
            ("small", "short"): f"[[{large if way == 0 else other}]]",
            ("large", "short"): f"[[{large}]]",
            ("small", "think"): f"I look.\n[[{large if way == 1 else other}]]",
            ("large", "transfer"): f"[[{other}]]",
        }
        for (side, stage), text in texts.items():
            record = {"task": task, "doc_id": doc_id, "stage": stage, "text": text}
            record |= {"prompt_tokens": rng.randint(50, 90), "output_tokens": rng.randint(1, 40)}
            lines[side].append(json.dumps({**record, "seconds": seconds * rng.random()}))
    for side, records in lines.items():
        (folder / f"{side}.jsonl").write_text("\n".join(records))
    return {side: str(folder / f"{side}.jsonl") for side in lines}


def start(
    data: Path, output: Path, task: str, limit: int | None = None, file_limit: int | None = None, **model_args: Any
) -> BaseProcess:
    """An evaluation of `limit` documents; what came of it is in `output` when it ended well, and beside it all that
    lmms-eval logged of each sample. `file_limit`: no file may grow beyond so many bytes."""
    process = SERVER.Process(target=_evaluate, args=(data, output, task, limit, file_limit, model_args))
    process.start()
    return process


def _evaluate(
    data: Path, output: Path, task: str, limit: int | None, file_limit: int | None, model_args: dict[str, Any]
) -> None:
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    _apart(output.with_suffix(".log"))
    os.chdir(data)
    from lmms_eval.evaluator import simple_evaluate
    from lmms_eval.tasks import TaskManager

    from lmms_eval_mai.plugin import task_dir

    results = simple_evaluate(
        model="mai_cascade",
        model_args=",".join(f"{name}={value}" for name, value in model_args.items()),
        tasks=[task],
        task_manager=TaskManager(include_path=str(task_dir()), include_defaults=False),
        batch_size=1,
        limit=limit,
        log_samples=True,
    )
    assert results is not None
    samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    found = {
        "scores": {name: value for name, value in results["results"][task].items() if isinstance(value, float)},
        "exits": [one["token_counts"][0]["exit"] for one in samples],
        "answers": [one["filtered_resps"] for one in samples],
        "tokens": [[one["token_counts"][0][f"{kind}_tokens"] for kind in ("input", "output")] for one in samples],
        "usage": {side: {k: used[k] for k in ("n_api_calls", "output_tokens")}
                  for side, used in results["usage"]["by_source"].items()},
    }  # fmt: skip
    output.with_suffix(".samples.json").write_text(json.dumps(samples, default=str))
    part = output.with_suffix(".part")
    part.write_text(json.dumps(found))
    part.rename(output)


class Command:
    """lmms-eval's own command, in a process like `start`'s."""

    def __init__(self, folder: Path, log: Path, *arguments: str, broken_off: bool = False) -> None:
        self._log = log
        self.process = SERVER.Process(target=_command, args=(folder, log, arguments, broken_off))
        self.process.start()

    def end(self, timeout: float = 120) -> tuple[int | None, str]:
        """-> exit code, all it printed. No process of its own is left behind."""
        self.process.join(timeout)
        left = [p for p in psutil.process_iter() if _session(p) == self.process.pid]
        assert left == []
        return self.process.exitcode, self._log.read_text(errors="replace")


def _session(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except OSError:
        return None


def _command(folder: Path, log: Path, arguments: tuple[str, ...], broken_off: bool) -> None:
    _apart(log)
    os.chdir(folder)
    from lmms_eval.__main__ import cli_evaluate
    from lmms_eval.loggers import EvaluationTracker

    def broken_off_here(*args: Any, **kwargs: Any) -> None:
        sys.exit(130)

    if broken_off:
        EvaluationTracker.save_results_aggregated = broken_off_here  # type: ignore[method-assign]
    sys.argv = ["lmms-eval", *arguments]
    cli_evaluate()


def _apart(log: Path) -> None:
    os.setsid()  # a group of its own, for signals as a terminal sends them
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever `nohup` has asked of the tests
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)


def lines_of(journal: Path) -> list[str]:
    """Whole lines of the only journal in a folder; none while there is no journal."""
    files = list(journal.glob("*.jsonl"))
    return files[0].read_text().split("\n")[:-1] if files else []


def strike(process: BaseProcess, journal: Path, after: int, how: int, group: bool = False) -> bool:
    """Send a signal once the journal has `after` lines, to the process or, as a terminal does, to its whole group; ->
    whether the process was still running."""
    while process.is_alive() and len(lines_of(journal)) < after:
        time.sleep(0.005)
    alive = process.is_alive()
    if alive and process.pid:
        (os.killpg if group else os.kill)(process.pid, how)
    process.join(90)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"the process outlived {signal.Signals(how).name} by a minute")
    return alive
