"""Follows the results of an evaluation until lmms-eval has saved them. Only then its call store is removed.

lmms-eval tells a model neither that its answers are scored nor that the results are on the disk, and it only logs a
warning if it cannot write them. So `plugin.follow_tracker` shows a `SaveWatch` each file that lmms-eval writes.
"""

import atexit
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmms_eval.utils import handle_arg_string, sanitize_model_name
from loguru import logger

from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.errors import ArgumentError, MaiError
from lmms_eval_mai.harness.command import configurations, report_errors_to_user
from lmms_eval_mai.plugin import RESULTS
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.evaluation import Evaluation
from lmms_eval_mai.user_input import make_writable


def run_name(config: Config) -> str:
    """Return the name that lmms-eval gives to a run and to the folder of its results."""
    if config.model_name is not None:
        return config.model_name
    models = "+".join(_model_name(engine) for engine in config.engines())
    sparse = ["sparse"] * (config.transfer == "sparse")
    return "-".join(["mai_cascade", models, config.method.name, *sparse])[:200]


def _model_name(engine: EngineConfig) -> str:
    """Return the last part of a name, the last two of a path from the root, or the model or address of an endpoint."""
    if engine.is_endpoint:
        (address,) = re.findall(r"//(?:[^/@]*@)?([^/\"']*)", engine.model)[:1]
        return str(engine.arguments.get("model", address)).replace("/", "-")
    path = Path(engine.model)
    return "-".join(path.parts[-2 if path.is_absolute() else -1 :])


def check_output_path(task: Any, config: Config) -> None:
    """Try to write to the folder of the results, which lmms-eval's command does only after the run. `task` has the
    arguments of the command. Raises `ArgumentError`."""
    given = getattr(getattr(task, "args", None), "output_path", None)
    if given:
        try:
            make_writable(Path(handle_arg_string(given), sanitize_model_name(run_name(config))))
        except (OSError, TypeError) as error:  # lmms-eval reads the name 2026 as a number
            raise ArgumentError(f"--output_path {given} cannot be written: {error}. Give another folder.") from None


class SaveWatch:
    """Waits until the results of an evaluation are saved, its samples being answered. Under lmms-eval's command, they
    are when lmms-eval has written or printed them. In library use the caller has them already."""

    def __init__(self, evaluation: Evaluation, backend: str, table: str) -> None:
        """`backend`: how lmms-eval's name for the model's class in its results begins. `table`: the final table, or an
        empty text. A command prints it at its end, below lmms-eval's own tables."""
        self._evaluation, self._backend, self._table = evaluation, backend, table
        self._in_command = configurations() > 0
        self._unsaved = {"results"} if self._in_command else set()
        """What lmms-eval must still save."""
        self._stem: str | None = None
        """How the names of lmms-eval's files begin. None: it has written none."""
        if table and not self._in_command:
            print(table, flush=True)
        atexit.register(self._at_exit)

    @contextlib.contextmanager
    def save_results_aggregated(
        self, tracker: Any, results: Mapping[str, Any], samples: Mapping[str, Any] | None, datetime_str: str
    ) -> Iterator[None]:
        """Name the run, and check the results file that lmms-eval has written."""
        if not str(results.get("config", {}).get("model_backend", "")).startswith(self._backend):
            yield  # another model of this process
            return
        names, time = tracker.general_config_tracker, datetime_str.replace(":", "-")
        names.model_name = run_name(self._evaluation.config)
        names.model_name_sanitized = sanitize_model_name(names.model_name)
        if tracker.output_path and Path(tracker.output_path, names.model_name_sanitized, time + RESULTS).is_file():
            names.model_name_sanitized += f"-{os.getpid()}"
            logger.warning(f"mai_cascade: another run began at {time}. This one is in {names.model_name_sanitized}.")
        yield
        self._unsaved.clear()
        if tracker.output_path:
            if self._in_command:
                self._unsaved.update(task for task, lines in (samples or {}).items() if lines)
            self._stem = str(Path(tracker.output_path, names.model_name_sanitized, time))
            with self._whole(self._stem + RESULTS) as file:
                json.loads(file.read_bytes())

    @contextlib.contextmanager
    def save_results_samples(self, tracker: Any, task_name: str, samples: Sequence[Any]) -> Iterator[None]:
        yield
        if self._stem is not None and samples:
            with self._whole(f"{self._stem}_samples_{task_name}.jsonl") as file, file.open("rb") as lines:
                if (count := sum(line.endswith(b"\n") for line in lines)) != len(samples):
                    raise ValueError(f"it has {count} lines for {len(samples)} samples, perhaps of another run")
            self._unsaved.discard(task_name)

    @contextlib.contextmanager
    def _whole(self, name: str) -> Iterator[Path]:
        """Turn errors of the block, which reads this file of lmms-eval, into one sentence."""
        try:
            yield Path(name)
        except (OSError, ValueError) as error:
            self._unsaved.add(name)
            with report_errors_to_user(self._evaluation.resume_hint):
                raise MaiError(
                    f"lmms-eval cannot write its results to {name} ({error}). Check --output_path and the free disk "
                    f"space{'; another --output_path may be given' if self._in_command else ''}."
                ) from error

    def finish(self, failed: bool = False) -> None:
        """Remove the call store if the results are saved. `failed`: an error came after the evaluation, perhaps while
        it was scored, so the store stays."""
        atexit.unregister(self._at_exit)
        if not self._unsaved and not failed:
            self._evaluation.complete()

    def _at_exit(self) -> None:
        if self._in_command and self._table:
            print(self._table, flush=True)
        if self._unsaved and self._stem is None:
            print(f"mai_cascade: lmms-eval saved no results. {self._evaluation.resume_hint()}", file=sys.stderr)
        self.finish(failed=getattr(sys, "last_value", None) is not None)  # Python sets it for an uncaught exception
