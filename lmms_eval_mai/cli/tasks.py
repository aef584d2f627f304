"""Checks that lmms-eval knows the model and the tasks of a command, and that the data sets can be loaded.

No data set is built or downloaded. It must be a local folder or file, or in the cache, or the hub must have it.
"""

import glob
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from lmms_eval_mai.cli.command_line import Command
from lmms_eval_mai.cli.findings import Finding, Mark, error_text
from lmms_eval_mai.cli.hub import Hub, head, in_cache
from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.plugin import MODEL_ID, task_dir


def check(command: Command, hub: Hub, mode: str = "cascade") -> Iterator[Finding]:
    """Check the model, the tasks and their data sets. `mode`: the model argument of this name."""
    try:
        from lmms_eval.models import get_model
        from lmms_eval.tasks import TaskManager

        get_model(MODEL_ID)
        manager = TaskManager(include_path=command.include_path)
    except Exception as error:
        text = f"cannot be loaded ({error_text(error).rstrip('.')}). Install lmms-eval-mai again."
        yield Finding("model", "PROBLEM", text)
        return
    yield model(command.model)
    known = set(manager.all_tasks)
    ours = {path.stem for path in task_dir().rglob("*.yaml") if path.parent.name != "groups"}
    if missing := sorted(ours - known):
        remedy = "The warnings above say why; if there are none, install lmms-eval-mai again."
        yield Finding("tasks", "PROBLEM", f"lmms-eval does not know {', '.join(missing)}. {remedy}")
    elif not command.tasks:
        yield Finding("tasks", "ok", f"lmms-eval knows the {len(ours)} tasks of lmms-eval-mai in {task_dir()}")
    if command.tasks:
        yield from _tasks(command, manager, hub, mode)


def model(name: str | None) -> Finding:
    """Check that lmms-eval knows the model. None: the command names none."""
    if name is None or name == MODEL_ID:
        return Finding("model", "ok", f"lmms-eval knows {MODEL_ID}")
    from lmms_eval.models import list_available_models

    names = list_available_models(include_aliases=True)
    if name in names:
        return Finding("model", "skipped", f"{name} is another model of lmms-eval. Only {MODEL_ID} is checked here.")
    hint = did_you_mean(name, [MODEL_ID]) or did_you_mean(name, names)
    return Finding("model", "PROBLEM", f"{name} is unknown to lmms-eval.{hint}")


def _tasks(command: Command, manager: Any, hub: Hub, mode: str) -> Iterator[Finding]:
    """Check that each task exists and works in this mode, and the data sets of those that exist."""
    from lmms_eval_mai.harness.requests import TWO_STAGE_TASKS, check_stages

    names = [] if os.path.isdir(command.tasks or "") else command.task_names()
    files = [name for name in names if os.path.isfile(name)]
    if not names or files:
        yield Finding("tasks", "skipped", f"{', '.join(files) or command.tasks}: task files are not checked.")
    found = manager.match_tasks([name for name in names if name not in files])
    if found:
        yield Finding("tasks", "ok", f"lmms-eval knows {', '.join(found)}")
    for name in names:
        if "*" in name:
            if not manager.match_tasks([name]):
                yield Finding("tasks", "PROBLEM", f"{name} matches no task of lmms-eval.")
        elif name not in found and name not in files:
            hint = did_you_mean(name, manager.all_tasks) or " `lmms-eval --tasks list` shows all tasks."
            yield Finding("tasks", "PROBLEM", f"{name} is unknown to lmms-eval.{hint}")
    leaves = [leaf for name in found for leaf in _leaves(manager, name, ())]
    try:
        check_stages(mode, TWO_STAGE_TASKS.intersection(leaves))
    except ArgumentError as error:
        yield Finding("tasks", "PROBLEM", error_text(error))
    yield from _data_sets(leaves, manager, hub)


def _leaves(manager: Any, name: str, above: tuple[str, ...]) -> Iterator[str]:
    """Return the tasks of a group or tag; for a task, the task itself."""
    entry = manager.task_index.get(name)
    if entry is None or name in above:
        return
    if entry["type"] not in ("group", "tag"):
        yield name
        return
    parts = entry["task"] if entry["task"] != -1 else _configuration(entry).get("task") or []
    for part in parts:
        inner = part.get("task") if isinstance(part, dict) else part
        if isinstance(inner, str):
            yield from _leaves(manager, inner, (*above, name))


def _data_sets(tasks: Sequence[str], manager: Any, hub: Hub) -> Iterator[Finding]:
    """Check each data set once."""
    users: dict[str, list[str]] = defaultdict(list)
    found: dict[str, tuple[Mark, str]] = {}
    for task in dict.fromkeys(tasks):
        try:
            fields = _configuration(manager.task_index[task])
            key = repr([fields.get(name) for name in ("dataset_path", "dataset_name", "dataset_kwargs")])
            if key not in found:
                found[key] = data_set(fields, hub)
        except Exception as error:
            key = error_text(error)
            found[key] = "skipped", f"its data set cannot be checked ({key.rstrip('.')})."
        users[key].append(task)
    for key, (mark, text) in found.items():
        yield Finding("data", mark, f"{', '.join(users[key])}: {text}")


def _configuration(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a task's file, without importing the functions that it names."""
    from lmms_eval.utils import load_yaml_config

    fields: dict[str, Any] = load_yaml_config(entry["yaml_path"], mode="simple")
    return fields


def data_set(fields: dict[str, Any], hub: Hub) -> tuple[Mark, str]:
    """Check the data set that a task's file names, and return the mark and the text of the finding."""
    path, name = fields.get("dataset_path"), fields.get("dataset_name")
    arguments = fields.get("dataset_kwargs") or {}
    if not isinstance(path, str):
        return "skipped", "its data set is not checked, because the task loads it itself."
    shown = f"{path} ({name})" if name else path
    if os.path.exists(path):
        return "ok", f"{shown} is on this machine"
    if "/" not in path and arguments.get("data_files"):
        return _files(arguments["data_files"])
    if arguments.get("load_from_disk") or path.startswith((".", "/")) or path.count("/") > 1:
        return "PROBLEM", f"there is no {path}. Correct dataset_path of the task."
    if in_cache(path, name, arguments):
        return "ok", f"{shown} is in the cache"
    if hub.absence is not None:
        remedy = "Run the command once with network, or copy the cache of a machine that has it."
        return "PROBLEM", f"{hub.absence}, and the data set {shown} is not in the cache. {remedy}"
    status = head(f"{hub.address}/api/datasets/{path}")
    if status in (401, 403, 404):
        remedy = "Check its name. If it needs permission, get it on its page and run `hf auth login`."
        return "PROBLEM", f"the hub does not give {path} (HTTP {status}). {remedy}"
    return "ok", f"{shown} is not in the cache; a run downloads it"


def _files(given: Any) -> tuple[Mark, str]:
    """Check the files of a data set that is described by its files."""
    values = given.values() if isinstance(given, dict) else [given]
    files = [str(file) for value in values for file in (value if isinstance(value, list) else [value])]
    local = [file for file in files if "://" not in file]
    if missing := [file for file in local if not glob.glob(file)]:
        return "PROBLEM", f"there is no {', '.join(missing)}. Correct dataset_kwargs of the task."
    if len(local) < len(files):
        return "skipped", "its data set is not checked, because its files are not on this machine."
    return "ok", f"{', '.join(local)} {'is' if len(local) == 1 else 'are'} on this machine"
