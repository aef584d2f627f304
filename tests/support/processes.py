"""Runs and commands in processes of their own, which a test can kill. Each imports lmms-eval, which takes 10 s."""

import contextlib
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import psutil
from pyarrow import Table, parquet
from support.pair import in_turn, records, written
from support.task_files import read_with_libyaml

DEMO_DOCUMENTS = 100
"""Of `shapes_s`, on which runs of the demo pair are compared."""
END_LIMIT_S = 400
"""Longer than any process of a test takes on a machine with much other work."""
POPE = Path("lmms-lab-encoder") / "POPE"
TESTS = Path(__file__).resolve().parents[1]


class Process(subprocess.Popen[bytes]):
    """A process that leads a session, and so a group for signals as a terminal sends them."""

    log: Path


def start_process(
    folder: Path,
    log: Path,
    function: Callable[..., None],
    *arguments: Any,
    errors: Path | None = None,
    environment: dict[str, str] | None = None,
) -> Process:
    """Call a function of `support` in `folder`, in a new process. `log` gets all that it prints, except what it prints
    to standard error if `errors` is given. `environment`: variables that it has besides those of the tests."""
    code = f"import atexit, gc, pickle, sys\nsys.path.insert(0, {str(TESTS)!r})\n"
    # In this order: Python's own collections at the end take 2 s, because they read all that is imported.
    code += "atexit.register(gc.freeze)\natexit.register(gc.collect)\n"
    code += f"function, arguments = pickle.loads({pickle.dumps((function, arguments))!r})\nfunction(*arguments)"
    with log.open("ab") as output, (errors or log).open("ab") as error_output:
        process = Process(
            [sys.executable, "-c", code],
            cwd=folder,
            stdout=output,
            stderr=error_output,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    process.log = log
    return process


def end(process: Process) -> None:
    """Wait for the end of a process. If it does not end, kill it with its engines, and fail."""
    try:
        process.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise AssertionError(f"still running: {process.log.read_text(errors='replace')[-3000:]}") from None


# --- scripts and documents --------------------------------------------------------------------------------


def write_pope(drawn_data: Path, folder: Path, name: str, documents: list[dict[str, Any]]) -> Path:
    """A data folder with these documents of POPE. `name`: of the file, because datasets keys its cache on names."""
    (folder / POPE / "data").mkdir(parents=True)
    schema = parquet.read_schema(drawn_data / POPE / "data" / "test.parquet")
    parquet.write_table(Table.from_pylist(documents, schema=schema), folder / POPE / "data" / f"{name}.parquet")
    card = (drawn_data / POPE / "README.md").read_text()
    (folder / POPE / "README.md").write_text(card.replace("test.parquet", f"{name}.parquet"))
    return folder


def scripts(folder: Path, task: str, rows: int, seconds: float = 0.0) -> dict[str, str]:
    """Write scripts of both sides in which the documents leave at all three exits, with tokens that differ from call to
    call. Returns the model arguments. They also have the answers to the `_r` task of the same benchmark."""
    rng = random.Random(5)
    made = records(task, [in_turn(doc_id, *rng.sample(["Yes", "No"], 2)) for doc_id in range(rows)])
    for of_side in made.values():
        for one in of_side:
            one |= {"seconds": seconds * rng.random(), "prompt_tokens": rng.randint(50, 90)}
            one["output_tokens"] = rng.randint(1, 40)
        of_side += [{**one, "task": f"{task[:-1]}r"} for one in of_side if one["prompt"] == "think"]
    return written(folder, made)


# --- evaluations and commands -----------------------------------------------------------------------------


def start(data: Path, output: Path, task: str, limit: int, **model_args: Any) -> Process:
    """Start an evaluation of `limit` documents in library use.

    If it succeeds, it writes its results to `output`, and beside them all that lmms-eval logged of each sample.
    """
    return start_process(data, output.with_suffix(".log"), evaluate, output, task, limit, model_args)


def evaluate(
    output: Path, task: str, limit: int, model_args: dict[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Evaluate in this process. Writes and returns the results, and all that lmms-eval logged of each sample."""
    from lmms_eval.evaluator import simple_evaluate
    from lmms_eval.tasks import TaskManager
    from support.engine_cores import fork_cores

    from lmms_eval_mai.plugin import task_dir

    if model_args.get("engine", "vllm") == "vllm":
        fork_cores()
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
        "usage": {side: {k: used[k] for k in ("n_api_calls", "output_tokens")}
                  for side, used in results["usage"]["by_source"].items()},
    }  # fmt: skip
    logged = json.dumps(samples, default=str)
    output.with_suffix(".samples.json").write_text(logged)
    output.write_text(json.dumps(found))
    return found, json.loads(logged)


class Command:
    """A console command of lmms-eval or of this package. `settings`: as for `start_process`."""

    def __init__(self, folder: Path, log: Path, *arguments: str, name: str = "lmms-eval", **settings: Any) -> None:
        self.process = start_process(folder, log, _command, name, arguments, **settings)

    def end(self) -> tuple[int | None, str]:
        """Wait for the end; returns the exit code and the log. Fails if a process of the command is left."""
        end(self.process)
        left = [process for process in psutil.process_iter() if _session(process) == self.process.pid]
        assert psutil.wait_procs(left, timeout=10)[1] == []  # multiprocessing's tracker ends a moment later
        return self.process.returncode, self.process.log.read_text(errors="replace")


def _session(process: psutil.Process) -> int | None:
    """Return the session of a process. None: it has ended."""
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else os.getsid(process.pid)
    except (OSError, psutil.NoSuchProcess):
        return None


def _command(name: str, arguments: tuple[str, ...]) -> None:
    read_with_libyaml()
    sys.argv = [name, *arguments]
    sys.exit(entry_points(group="console_scripts")[name].load()())


# --- kills ------------------------------------------------------------------------------------------------


def lines_of(store: Path) -> list[str]:
    """Return the whole lines of the only call store in a folder; an empty list if there is no store."""
    lines: list[str] = []
    with contextlib.suppress(FileNotFoundError):  # a run that completes removes its store
        for file in store.glob("*.jsonl"):
            lines = file.read_text().split("\n")[:-1]
    return lines


def wait_for_lines(process: Process, store: Path, count: int) -> bool:
    """Wait until the store has `count` lines or the process has ended; returns whether the process is running."""
    while process.poll() is None and len(lines_of(store)) < count:
        time.sleep(0.02)
    return process.poll() is None


def strike(process: Process, store: Path, after: int) -> bool:
    """Kill a process when the store has `after` lines. Returns whether it was still running."""
    alive = wait_for_lines(process, store, after)
    if alive:
        os.kill(process.pid, signal.SIGKILL)
    end(process)
    return alive
