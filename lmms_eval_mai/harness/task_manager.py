"""Finds a task of this package, of a folder, or of lmms-eval."""

from pathlib import Path
from typing import Any

from lmms_eval_mai.plugin import task_dir


def task_manager(name: str, include_path: str | None) -> Any:
    """Return lmms-eval's `TaskManager` for one task. lmms-eval's own tasks, which take ten seconds, are read only if
    neither this package nor the folder has a file of this name."""
    from lmms_eval.tasks import TaskManager

    for folder in (str(task_dir()), include_path):
        if folder and any(path.stem == name for path in Path(folder).rglob("*.yaml")):
            return TaskManager(include_path=folder, include_defaults=False)
    return TaskManager(include_path=include_path)
