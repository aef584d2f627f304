"""lmms-eval finds our model and tasks without a flag. A broken file of ours does not break runs of other models."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.tasks import NAMES, VARIANTS

from lmms_eval_mai.plugin import task_dir

ROOT = Path(__file__).resolve().parents[2]
OUR_TASKS = {*NAMES, *(f"shapes_{variant}" for variant in VARIANTS)}


def run(code: str, path: Path = ROOT) -> tuple[list[str], list[str]]:
    """Run Python in a new process; returns the lines it printed, and our warnings. `path` comes before the installed
    package. lmms-eval's logger writes to standard output."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=path)
    assert done.returncode == 0, done.stderr
    lines = (done.stdout + done.stderr).splitlines()
    printed = [line.removeprefix("> ") for line in lines if line.startswith("> ")]
    return printed, [line for line in lines if "WARNING" in line and "lmms-eval-mai" in line]


@pytest.mark.slow
def test_lmms_eval_registers_our_model_and_tasks_and_imports_nothing_heavy_for_them(tmp_path: Path) -> None:
    """A task of the user comes before ours of the same name."""
    (tmp_path / "mine.yaml").write_text("task: pope_s\ndataset_path: mine\noutput_type: generate_until\n")
    heavy = "{'torch', 'vllm', 'transformers', 'datasets', 'lmms_eval', 'PIL', 'numpy'}"
    code = (
        f"import importlib.util, sys, lmms_eval_mai.plugin\nprint('>', sorted({heavy} & set(sys.modules)))\n"
        "import lmms_eval.models as m\n"
        "print('>', 'lmms_eval.tasks' in sys.modules, 'lmms_eval_mai.harness.model' in sys.modules)\n"
        "print('>', m.get_model('mai_cascade').__module__)\n"
        "importlib.util.find_spec('lmms_eval.tasks')\n"  # keeps the hook
        "from lmms_eval.tasks import TaskManager\n"
        f"tasks = TaskManager(include_path={str(tmp_path)!r})\n"
        f"print('>', {OUR_TASKS!r} <= set(tasks.all_tasks), tasks.task_index['pope_s']['yaml_path'])\n"
        f"print('>', TaskManager(include_path={str(tmp_path)!r}, include_defaults=False).all_tasks)\n"
        "from lmms_eval.loggers import EvaluationTracker\n"  # it is wrapped for our own runs only
        "print('>', hasattr(EvaluationTracker.save_results_aggregated, '__wrapped__'))"
    )
    found = ["[]", "False False", "lmms_eval_mai.harness.model", f"True {tmp_path}/mine.yaml", "['pope_s']", "False"]
    assert run(code) == (found, [])


@pytest.mark.slow
def test_broken_task_file_disables_only_our_tasks_with_one_warning(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "lmms_eval_mai", tmp_path / "lmms_eval_mai")
    shutil.copytree(task_dir(), tmp_path / "task_configs")
    (tmp_path / "task_configs" / "pope" / "pope_s.yaml").write_text("task: [unclosed")
    printed, warnings = run(
        "import lmms_eval.models, lmms_eval_mai\n"
        "from lmms_eval.tasks import TaskManager\n"
        "names = TaskManager().all_tasks\n"
        "print('>', lmms_eval_mai.__file__)\n"
        "print('>', 'pope' in names, 'pope_s' in names, 'pope_r' in names)\n"
        "print('>', lmms_eval.models.get_model('mai_cascade').__name__)",
        path=tmp_path,
    )
    assert printed == [str(tmp_path / "lmms_eval_mai" / "__init__.py"), "True False False", "MaiCascade"]
    assert len(warnings) == 1 and "Run `lmms-eval-mai doctor`" in warnings[0]


@pytest.mark.long
def test_lmms_eval_with_a_changed_task_manager_still_works_with_one_warning() -> None:
    printed, warnings = run(
        "import lmms_eval.tasks as t\n"
        "t.TaskManager.initialize_tasks = lambda self, where=None, new=1: {'theirs': {'type': 'task'}}\n"
        "import lmms_eval.models as m\n"
        "print('>', m.get_model('mai_cascade').__name__, len(m.MODEL_REGISTRY_V2.list_canonical_model_ids()) > 50)\n"
        "print('>', t.TaskManager.initialize_tasks(object()))"
    )
    assert printed == ["MaiCascade True", "{'theirs': {'type': 'task'}}"]  # lmms-eval's own, unchanged
    assert len(warnings) == 1 and "not available" in warnings[0]


@pytest.mark.parametrize("listing", ["{}", "types.MappingProxyType({})", "ReadOnly()"])
def test_model_is_registered_also_if_lmms_evals_list_of_models_cannot_be_changed(listing: str) -> None:
    printed, warnings = run(
        "import types, lmms_eval.models as m\n"
        "class ReadOnly(dict):\n"
        "    def setdefault(self, *_): raise TypeError('read-only')\n"
        "    __setitem__ = setdefault\n"
        f"m.AVAILABLE_CHAT_TEMPLATE_MODELS = {listing}\n"
        "from lmms_eval_mai.plugin import manifests\n"
        "print('>', [one.model_id for one in manifests()], *m.AVAILABLE_CHAT_TEMPLATE_MODELS)"
    )
    assert printed == ["['mai_cascade']" + " mai_cascade" * (listing == "{}")] and not warnings


def test_changed_model_registry_disables_only_our_model() -> None:
    printed, warnings = run(
        "import sys\nsys.modules['lmms_eval.models.registry_v2'] = type(sys)('registry_v2')\n"
        "from lmms_eval_mai.plugin import manifests\nprint('>', manifests())"
    )
    assert printed == ["[]"] and len(warnings) == 1
