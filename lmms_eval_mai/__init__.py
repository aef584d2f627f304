"""Multi-agent inference (arXiv 2604.04929) as an evaluated model of lmms-eval.

Importing this package makes its tasks visible to lmms-eval's `TaskManager`. `lmms-eval` commands do not need the
import: they find the model and the tasks through an entry point (`plugin.py`).

The public API is `__all__`:

- `Cascade`: two models that answer questions about images of one's own, without lmms-eval's tasks
- `MaiCascade`: the model, for lmms-eval's `simple_evaluate(model=MaiCascade(small=..., large=...), ...)`
- `Config`: all model arguments with their defaults; `parse`: reads and checks arguments, and returns a `Config`
- `task_dir`: returns the folder of the task files, for `TaskManager(include_path=...)`
- the errors of `lmms_eval_mai.errors`

`Cascade`, `MaiCascade`, `Config` and `parse` are imported when they are first used. The import of this package imports
nothing heavy, because it runs at every start of lmms-eval.
"""

import importlib
from typing import TYPE_CHECKING, Any

from lmms_eval_mai import errors
from lmms_eval_mai.errors import *  # noqa: F403 - all errors are public
from lmms_eval_mai.plugin import install, task_dir

if TYPE_CHECKING:
    from lmms_eval_mai.harness.model import MaiCascade
    from lmms_eval_mai.run.ask import Cascade
    from lmms_eval_mai.run.config import Config, parse

__version__ = "0.1.0"

__all__ = ["Cascade", "Config", "MaiCascade", "__version__", "parse", "task_dir"]
__all__ += [name for name in vars(errors) if not name.startswith("_")]

_IMPORTED_WHEN_USED = {
    "Cascade": "lmms_eval_mai.run.ask",
    "Config": "lmms_eval_mai.run.config",
    "MaiCascade": "lmms_eval_mai.harness.model",
    "parse": "lmms_eval_mai.run.config",
}


def __getattr__(name: str) -> Any:
    if name not in _IMPORTED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_IMPORTED_WHEN_USED[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


install()
