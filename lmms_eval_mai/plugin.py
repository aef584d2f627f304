"""Registers the model with lmms-eval, and makes our tasks visible to it.

lmms-eval 0.7.3 has an entry point for models and none for tasks. It loads the entry point when `lmms_eval.models` is
imported. So `manifests()` also wraps `TaskManager.initialize_tasks`, which every command calls to find its tasks.

Nothing in this module raises, because an error here would break runs of other models. If one of our files is broken, or
if lmms-eval has changed what we wrap, the user gets one warning, and lmms-eval's own models and tasks still work.

This module imports nothing heavy, because it runs at every start of lmms-eval.
"""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

MODEL_ID = "mai_cascade"
CLASS_PATH = "lmms_eval_mai.harness.model.MaiCascade"
TASKS_MODULE = "lmms_eval.tasks"
MARK = "_lmms_eval_mai"
"""Attribute of a wrapped method of lmms-eval."""
RESULTS = "_results.json"
"""How the names of lmms-eval's results files end."""


def task_dir() -> Path:
    """Return the folder of the task files: inside the package in a wheel, beside it in an editable install."""
    package = Path(__file__).resolve().parent
    inside = package / "task_configs"
    return inside if inside.is_dir() else package.parent / "task_configs"


def manifests() -> list[Any]:
    """Return a list with our `ModelManifest`, or an empty list if it cannot be built. Entry point `lmms_eval.models`.

    It must not raise: lmms-eval has one `try` around the loop over all entry points, so an error here would skip the
    plugins that come after this one (lmms_eval/models/__init__.py).
    """
    try:
        install()
        from lmms_eval.models.registry_v2 import ModelManifest

        # `lmms-eval models` and lmms-eval's interactive wizard (cli/wizard.py) list this dict, not the manifests. It is
        # only for show, and may become read-only (lmms-eval pull request 1450).
        with contextlib.suppress(Exception):
            sys.modules["lmms_eval.models"].AVAILABLE_CHAT_TEMPLATE_MODELS.setdefault(MODEL_ID, CLASS_PATH)
        return [ModelManifest(model_id=MODEL_ID, chat_class_path=CLASS_PATH)]
    except Exception as error:
        _warn(f"the model {MODEL_ID} is not available", error)
        return []


def install() -> None:
    """Make our tasks visible: now, or when `lmms_eval.tasks` is imported. That import takes 10 s, so it is not forced
    here."""
    try:
        tasks = sys.modules.get(TASKS_MODULE)
        if tasks is not None:
            _wrap_task_manager(tasks)
        elif not any(isinstance(finder, _TasksFinder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _TasksFinder())
    except Exception as error:
        _warn("the tasks of lmms-eval-mai are not available", error)


def _wrap_task_manager(tasks: ModuleType) -> None:
    manager = tasks.TaskManager
    original = manager.initialize_tasks
    if hasattr(original, MARK):
        return

    @functools.wraps(original)
    def initialize_tasks(self: Any, *args: Any, **kwargs: Any) -> Any:
        index = original(self, *args, **kwargs)
        try:
            given = inspect.signature(original).bind(self, *args, **kwargs).arguments
            if not given.get("include_defaults", True):  # the caller wants only one folder
                return index
            ours = original(self, include_path=[str(task_dir())], include_defaults=False)
            return {**ours, **index}  # if a name exists twice, the task of lmms-eval or of the user wins
        except Exception as error:
            _warn(f"the tasks in {task_dir()} are not available", error)
            return index

    setattr(initialize_tasks, MARK, True)
    manager.initialize_tasks = initialize_tasks


def follow_tracker(follower: Any) -> None:
    """Wrap the two methods with which lmms-eval's `EvaluationTracker` saves results. Each call then runs inside the
    context manager of the same name on `follower`, which gets the same arguments by name, and the tracker. A later
    follower, or None, takes the place of an earlier one. Runs of other models never call this function."""
    from lmms_eval.loggers import EvaluationTracker

    for name in ("save_results_aggregated", "save_results_samples"):
        method = getattr(EvaluationTracker, name)
        if not hasattr(method, "follower"):
            method = _followed(method)
            setattr(EvaluationTracker, name, method)
        method.follower = follower


def _followed(original: Any) -> Any:
    @functools.wraps(original)
    def save(self: Any, *args: Any, **kwargs: Any) -> Any:
        if save.follower is None:  # type: ignore[attr-defined]
            return original(self, *args, **kwargs)
        given = inspect.signature(original).bind(self, *args, **kwargs).arguments
        given["tracker"] = given.pop("self")
        with getattr(save.follower, original.__name__)(**given):  # type: ignore[attr-defined]
            return original(self, *args, **kwargs)

    return save


class _TasksFinder(importlib.abc.MetaPathFinder):
    """Lets the `TaskManager` of `lmms_eval.tasks` be wrapped right after the module's import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != TASKS_MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                load(module)
                install()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_warned: set[str] = set()


def _warn(consequence: str, error: Exception) -> None:
    """Warn once, although lmms-eval looks for its tasks several times in a run."""
    from loguru import logger

    cause = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
    message = (
        f"lmms-eval-mai: {consequence} ({cause}). All other models and tasks can be used. Run `lmms-eval-mai doctor`."
    )
    if message not in _warned:
        _warned.add(message)
        logger.warning(message)
