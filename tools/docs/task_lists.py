"""The tasks of this package, for README.md and docs/tasks.md, read from their YAML files."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

TASKS = Path(__file__).resolve().parents[2] / "task_configs"
ORDER = ("_s", "_e", "_r", "_e_s2", "_r_s2")
"""The endings of task names in the order of the lists."""


class _Loader(yaml.SafeLoader):
    """Reads lmms-eval's `!function NAME` as the text NAME."""


_Loader.add_constructor("!function", lambda loader, node: str(loader.construct_scalar(node)))


def load() -> dict[str, list[dict[str, Any]]]:
    """Return benchmark name -> the configurations of its tasks, with the values of the benchmark's file, which they
    include first."""
    benchmarks: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(TASKS.rglob("*.yaml")):
        task = yaml.load(path.read_text(encoding="utf-8"), _Loader)
        if "metadata" not in task:
            continue
        shared = yaml.load((path.parent / task["include"][0]).read_text(encoding="utf-8"), _Loader)
        benchmarks[task["metadata"]["mai"]["benchmark"]].append({**shared, **task})
    return dict(sorted(benchmarks.items()))


def variants() -> list[str]:
    """Return the endings of task names. Raises `ValueError` if a benchmark lacks one."""
    found = {name: sorted(task["task"].removeprefix(name) for task in tasks) for name, tasks in load().items()}
    first, *others = found.values()
    if any(other != first for other in others):
        raise ValueError(f"The benchmarks do not have the same variants: {found}")
    return sorted(first, key=ORDER.index)


def print_names() -> None:
    """Print the names of benchmarks and variants."""
    names = [name for name in load() if name != "shapes"]
    print(f"`{{{', '.join(names)}}}`")
    print(f"x `{{{', '.join(variants())}}}`")


def print_benchmarks() -> None:
    """Print one table row per benchmark: tasks, data set, split and metrics."""
    print("| tasks | data set | split | metrics |\n|---|---|---|---|")
    for name, tasks in load().items():
        task = tasks[0]
        data = " ".join(filter(None, (task["dataset_path"], task.get("dataset_name"))))
        data = "in this package" if data == "parquet" else f"`{data}`"
        metrics = ", ".join(f"`{metric['metric']}`" for metric in task["metric_list"])
        print(f"| `{name}_...` | {data} | `{task['test_split']}` | {metrics} |")
