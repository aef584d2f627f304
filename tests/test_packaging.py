"""The contents of the wheel. An installed wheel finds its own tasks."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.slow  # the wheel is built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, because setuptools writes into the folder of its sources."""
    source = tmp_path_factory.mktemp("source")
    for entry in ROOT.iterdir():
        if entry.is_file() and not entry.name.startswith("."):
            shutil.copy(entry, source)
    for folder in ("lmms_eval_mai", "task_configs"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--wheel", "--no-isolation", "--outdir", str(source / "dist")]
    command = [sys.executable, "-m", "build", *options, str(source)]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = (source / "dist").glob("*.whl")
    return path


def task_files() -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / "task_configs").rglob("*yaml")}


def test_the_wheel_holds_all_files_of_the_package_and_every_task_file(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "lmms_eval_mai"
    named = [path.relative_to(ROOT) for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {name.as_posix() for name in named} <= packed
    tasks = {name for name in packed if "task_configs/" in name}
    assert tasks == {f"lmms_eval_mai/{name}" for name in (*task_files(), "task_configs/shapes/test.parquet")}


_CHILD = """
import json, lmms_eval_mai.plugin as plugin
from lmms_eval.utils import load_yaml_config
folder = plugin.task_dir()
files = [path.relative_to(folder.parent).as_posix() for path in folder.rglob("*yaml")]
task = load_yaml_config(str(folder / "pope" / "pope_r_s2.yaml"), mode="simple")
print(json.dumps([plugin.__file__, str(folder), files, [task["task"], task["output_type"], task["dataset_path"]]]))
"""


def test_an_installed_wheel_finds_its_own_tasks(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", _CHILD], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    module, folder, files, task = json.loads(done.stdout)
    assert Path(module).is_relative_to(site)
    assert Path(folder) == site / "lmms_eval_mai" / "task_configs"
    assert set(files) == task_files()
    assert task == ["pope_r_s2", "generate_until_multi_round", "lmms-lab-encoder/POPE"]


def test_every_function_that_a_task_file_names_is_absolute() -> None:
    """lmms-eval looks for a relative name in the folder of the YAML, which has no Python in a wheel."""
    named = [
        name
        for path in sorted(task_files())
        for name in re.findall(r"!function (\S+)", (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert len(named) > 20
    assert {name.split(".")[0] for name in named} == {"lmms_eval", "lmms_eval_mai"}
    assert min(name.count(".") for name in named) >= 2
