"""Runs and commands in processes that a test can kill.

Each process is forked from a server that has imported lmms-eval, so it starts in a second and not in twenty.
"""

import contextlib
import json
import os
import random
import resource
import runpy
import signal
import sys
import time
from collections.abc import Callable, Collection
from importlib.metadata import entry_points
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
from loguru import logger
from pyarrow import Table, parquet
from support.engine_cores import SERVER, preload, serve_own_cores

DEMO_DOCUMENTS = 150
"""Of `shapes_s`, on which runs of the demo pair are compared."""

END_LIMIT_S = 400
"""Longer than any process of a test takes on a machine with much other work."""
LOGS: dict[int | None, Path] = {}
"""Process id -> the log of a process."""

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


def scripts(folder: Path, task: str, rows: int, seconds: float = 0.0, failing: Collection[int] = ()) -> dict[str, str]:
    """Write scripts of both sides in which the documents leave at all three exits, with tokens that differ from call to
    call. Returns the model arguments. They also have the answers of the models alone: to the `_r` task of the same
    benchmark, and to a task that is not ours. The first call of each `failing` document fails."""
    rng = random.Random(5)
    lines: dict[str, list[str]] = {"small": [], "large": []}
    for doc_id in range(rows):
        way = doc_id % 3
        large = f"[[{rng.choice(['Yes', 'No'])}]]"
        other = "[[No]]" if large == "[[Yes]]" else "[[Yes]]"
        small, thought = large if way == 0 else other, large if way == 1 else other
        texts = [
            ("small", "short", small),
            ("small", "task", small),
            ("small", "think", f"I look.\n{thought}"),
            ("large", "short", large),
            ("large", "task", large),
            ("large", "transfer", other),
        ]
        for side, stage, text in texts:
            record = {"task": task, "doc_id": doc_id, "stage": stage, "text": text, "seconds": seconds * rng.random()}
            record |= {"prompt_tokens": rng.randint(50, 90), "output_tokens": rng.randint(1, 40)}
            if doc_id in failing and (side, stage) == ("small", "short"):
                record["fault"] = "error"
            lines[side].append(json.dumps(record))
            if stage == "think" and task.endswith("_s"):
                lines[side].append(json.dumps({**record, "task": task.removesuffix("s") + "r"}))
    folder.mkdir(parents=True, exist_ok=True)
    for side, records in lines.items():
        (folder / f"{side}.jsonl").write_text("\n".join(records))
    return {"engine": "scripted", **{side: str(folder / f"{side}.jsonl") for side in lines}}


def start_process(
    folder: Path,
    log: Path,
    function: Callable[..., None],
    *arguments: Any,
    engines: bool = True,
    errors: Path | None = None,
    environment: dict[str, str] | None = None,
) -> BaseProcess:
    """Call a function of a module in `folder`, in a new process that leads a session.

    `log` gets all that it prints, except what it prints to standard error if `errors` is given. `environment`:
    variables that it has besides those of the tests. `engines`: it may start vLLM engines.
    """
    preload(engines)
    given = folder, log, errors, environment or {}, engines, function, arguments
    process = SERVER.Process(target=_run, args=given)
    process.start()
    LOGS[process.pid] = log
    return process


def _run(
    folder: Path,
    log: Path,
    errors: Path | None,
    environment: dict[str, str],
    engines: bool,
    function: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    os.setsid()  # a group of its own, for signals as a terminal sends them
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` may have ignored it for the tests
    for number, path in ((1, log), (2, errors or log)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(folder)
    os.environ.update(environment)
    if engines:
        serve_own_cores()
    function(*arguments)


def start(
    data: Path, output: Path, task: str, limit: int | None = None, file_limit: int | None = None, **model_args: Any
) -> BaseProcess:
    """Start an evaluation of `limit` documents.

    If it succeeds, it writes its results to `output`, and beside them all that lmms-eval logged of each sample.
    `file_limit`: the largest size in bytes to which any of its files can grow.
    """
    given = output, task, limit, file_limit, model_args
    engines = model_args.get("engine") != "scripted"
    return start_process(data, output.with_suffix(".log"), _evaluate, *given, engines=engines)


def _evaluate(output: Path, task: str, limit: int | None, file_limit: int | None, model_args: dict[str, Any]) -> None:
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    from lmms_eval.evaluator import simple_evaluate
    from lmms_eval.tasks import TaskManager

    from lmms_eval_mai.plugin import task_dir

    # In library use, lmms-eval shows only warnings.
    logger.add(sys.stderr, level="INFO", filter=lambda record: record["level"].name == "INFO")
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


def end(process: BaseProcess) -> None:
    """Wait for the end of a process that leads a session. If it does not end, kill it with its engines, which would
    slow down all later tests, and fail."""
    process.join(END_LIMIT_S)
    if process.is_alive():
        with contextlib.suppress(ProcessLookupError):  # it leads no session yet
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.kill()
        process.join()
        text = LOGS[process.pid].read_text(errors="replace")[-3000:]
        raise AssertionError(f"the process was still running after {END_LIMIT_S} s. {text}")


def start_script(script: Path, log: Path) -> BaseProcess:
    """Start a Python script in its folder. It may start vLLM engines."""
    return start_process(script.parent, log, _script, script)


def _script(script: Path) -> None:
    runpy.run_path(str(script), run_name="__main__")


class Command:
    """A console command of lmms-eval or of this package, in a process like that of `start`.

    `log` and `environment`: as for `start_process`, and so are `errors` and `engines`. `stopped_before_results`: Ctrl-C
    comes when lmms-eval is about to write its results.
    """

    def __init__(
        self,
        folder: Path,
        log: Path,
        *arguments: str,
        name: str = "lmms-eval",
        engines: bool = False,
        stopped_before_results: bool = False,
        **settings: Any,
    ) -> None:
        self._log = log
        given = name, arguments, stopped_before_results
        self.process = start_process(folder, log, _command, *given, engines=engines, **settings)

    def end(self) -> tuple[int | None, str]:
        """Wait for the end; returns the exit code and the log. Fails if a process of the command is left."""
        end(self.process)
        left = [p for p in psutil.process_iter() if _session(p) == self.process.pid]
        assert left == []
        return self.process.exitcode, self._log.read_text(errors="replace")


def _session(process: psutil.Process) -> int | None:
    """Return the session of a process. None: it has ended."""
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else os.getsid(process.pid)
    except (OSError, psutil.NoSuchProcess):
        return None


def _command(name: str, arguments: tuple[str, ...], stopped_before_results: bool) -> None:
    if stopped_before_results:
        from lmms_eval.loggers import EvaluationTracker

        def stop(*args: Any, **kwargs: Any) -> None:
            sys.exit(130)

        EvaluationTracker.save_results_aggregated = stop  # type: ignore[method-assign]
    (script,) = entry_points(group="console_scripts", name=name)
    sys.argv = [name, *arguments]
    sys.exit(script.load()())


def lines_of(journal: Path) -> list[str]:
    """Return the whole lines of the only journal in a folder; an empty list if there is no journal."""
    files = list(journal.glob("*.jsonl"))
    return files[0].read_text().split("\n")[:-1] if files else []


def wait_for_lines(process: BaseProcess, journal: Path, count: int) -> bool:
    """Wait until the journal has `count` lines or the process has ended; returns whether the process is running."""
    size = -1
    while process.is_alive():
        before, size = size, _size(journal)
        if size != before and len(lines_of(journal)) >= count:
            break
        time.sleep(0.005)
    return process.is_alive()


def _size(journal: Path) -> int:
    with contextlib.suppress(FileNotFoundError):  # a run that completes deletes its journal
        return sum(file.stat().st_size for file in journal.glob("*.jsonl"))
    return 0


def strike(process: BaseProcess, journal: Path, after: int, how: int, group: bool = False) -> bool:
    """Send a signal when the journal has `after` lines, to the process or, as a terminal does, to its whole group.

    Returns whether the process was still running.
    """
    alive = wait_for_lines(process, journal, after)
    if alive and process.pid:
        (os.killpg if group else os.kill)(process.pid, how)
    end(process)
    return alive
