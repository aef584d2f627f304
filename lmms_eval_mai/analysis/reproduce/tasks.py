"""Loads the task of each benchmark before an engine starts, and refuses tasks that the runs cannot answer."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.harness import documents
from lmms_eval_mai.harness.requests import check_task, read_requests
from lmms_eval_mai.method.benchmarks import BENCHMARKS
from lmms_eval_mai.method.prompts import VARIANTS
from lmms_eval_mai.run.config import Config


def check_benchmarks(names: Iterable[str]) -> None:
    """Refuse an unknown name. Raises `ArgumentError`."""
    for name in names:
        if name not in BENCHMARKS:
            hint = did_you_mean(name, BENCHMARKS)
            raise ArgumentError(f"--benchmarks {name} is unknown: choose from {', '.join(BENCHMARKS)}.{hint}")


def task_manager(benchmarks: Sequence[str], include_path: str | None) -> Any:
    """Return lmms-eval's task manager, which serves all runs. Takes seconds."""
    return documents.task_manager([f"{name}_{suffix}" for name in benchmarks for suffix in VARIANTS], include_path)


def check_task_of(benchmark: str, manager: Any, configs: Sequence[Config], gen_kwargs: Mapping[str, Any]) -> None:
    """Load the documents of a benchmark and check its task. `configs`: of each pair. Raises `ArgumentError`."""
    task = documents.load_task(f"{benchmark}_s", manager, gen_kwargs)
    task.build_all_requests(limit=1, rank=0, world_size=1)
    (request,) = read_requests(task.instances[:1])
    for config in configs:
        check_task(request, config)


def hide_progress_bars() -> None:
    """Hide the progress bars of lmms-eval and datasets in this process. Ours stays."""
    import lmms_eval.api.task
    import lmms_eval.evaluator
    from datasets import disable_progress_bars
    from tqdm import tqdm

    class HiddenBar(tqdm):
        """A progress bar that is never shown."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "disable": True})

    disable_progress_bars()
    for module in (lmms_eval.api.task, lmms_eval.evaluator):
        vars(module)["tqdm"] = HiddenBar
