"""Loads tasks of lmms-eval with their documents, as an evaluation with this model does it. lmms-eval's tasks are
imported at the first use, which takes ten seconds: wrong arguments should be refused before."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.plugin import MODEL_ID, install, task_dir
from lmms_eval_mai.redaction import error_text


def task_manager(names: Collection[str], include_path: str | None = None) -> Any:
    """Return lmms-eval's `TaskManager` for these tasks. lmms-eval's own tasks are read only if neither the folder of
    the user nor this package has files of these names. Raises `ArgumentError` for an unknown name and for a group."""
    from lmms_eval.tasks import TaskManager

    for folder in (include_path, str(task_dir())):
        if folder and {path.stem for path in Path(folder).rglob("*.yaml")} >= set(names):
            manager = TaskManager(include_path=folder, include_defaults=False, model_name=MODEL_ID)
            break
    else:
        install()  # makes our tasks visible
        manager = TaskManager(include_path=include_path, model_name=MODEL_ID)
    for name in names:
        if name not in manager.all_tasks:
            hint = did_you_mean(name, manager.all_tasks) or " `lmms-eval --tasks list` shows all tasks."
            raise ArgumentError(f"{name} is unknown to lmms-eval.{hint}")
        if manager.task_index[name]["type"] in ("group", "tag"):
            raise ArgumentError(f"{name} is a group of tasks: give the name of one task.")
    return manager


def load_task(name: str, manager: Any, gen_kwargs: Mapping[str, Any] | None = None) -> Any:
    """Return a task whose questions a model answers with a text. Takes seconds. Raises `ArgumentError`."""
    from lmms_eval.tasks import get_task_dict

    try:
        task = get_task_dict([name], manager, task_type="chat")[name]
    except Exception as raised:  # of any library that loads data
        attempt = getattr(raised, "last_attempt", None)  # of a tenacity.RetryError, because lmms-eval tries again
        text = error_text(attempt.exception() if attempt else raised).rstrip(".")
        offline = " HF_HUB_OFFLINE is set." if os.environ.get("HF_HUB_OFFLINE") else ""
        raise ArgumentError(f"Task {name} cannot be loaded ({text}).{offline}") from raised
    if "generate_until" not in str(task.get_config("output_type")):
        raise ArgumentError(f"Task {name} has no questions that a model answers with a text. Choose another task.")
    if gen_kwargs:
        task.set_config(key="generation_kwargs", value=dict(gen_kwargs), update=True)
    return task
