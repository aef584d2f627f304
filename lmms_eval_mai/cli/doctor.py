"""`lmms-eval-mai doctor`: what is installed, what can run here, and what a given command line would start and where."""

import asyncio
import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from lmms_eval_mai.engines.base import Engine, EngineConfig
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.plugin import MODEL_ID, task_dir
from lmms_eval_mai.run.config import Config, parse

GIB = 1 << 30


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    what: str
    fine: bool
    text: str
    """What was found; where it is not fine, with its remedy."""
    needed: bool = True
    """Whether nothing works without it. What is not fine and not needed is no problem."""


def examine(model_args: str | None = None, tasks: str | None = None) -> Iterator[Finding]:
    """All findings, one by one: some take seconds. `model_args`, `tasks`: those of the command in question."""
    yield from _packages()
    yield _tried("devices", _devices, "`pip install torch`.")
    yield from _registered([task for task in (tasks or "").split(",") if task])
    if model_args is not None:
        yield from _command(model_args)


def report(findings: Iterable[Finding]) -> int:
    """Print them as they come; -> the exit code."""
    problems = 0
    for finding in findings:
        mark = "ok" if finding.fine else "PROBLEM" if finding.needed else "-"
        problems += mark == "PROBLEM"
        print(f"{mark:>7}  {finding.what:<14} {finding.text}", flush=True)
    print(f"\n{problems} problem{'s' * (problems != 1)}." if problems else "\nNo problem found.")
    return 1 if problems else 0


def _packages() -> Iterator[Finding]:
    from lmms_eval_mai.engines.vllm.arguments import INSTALL

    yield Finding("python", sys.version_info >= (3, 10), sys.version.split()[0])
    remedies = {
        "lmms_eval": "`pip install lmms-eval`.",
        "torch": "`pip install torch`.",
        "transformers": "`pip install transformers`. engine=transformers needs it.",
        "openai": "`pip install openai`. Endpoints (small=http://...) need it.",
        "vllm": f"engine=vllm needs it. {INSTALL}",
    }
    for name, remedy in remedies.items():
        try:
            module = importlib.import_module(name)
        except Exception as error:
            yield Finding(
                name, False, f"does not import ({_line(error)}). {remedy}", needed=name in ("lmms_eval", "torch")
            )
        else:
            yield Finding(name, True, str(getattr(module, "__version__", None) or _version(name)))


def _version(name: str) -> str:
    from importlib.metadata import version

    return version(name.replace("_", "-"))


def _devices() -> str:
    import psutil
    import torch

    if not torch.cuda.is_available():
        memory = psutil.virtual_memory()
        cores = len(os.sched_getaffinity(0))
        free = f"{memory.available / GIB:.0f} of {memory.total / GIB:.0f} GiB of memory free"
        return f"no GPU that PyTorch can use; {cores} CPU cores, {free}"
    cards = []
    for number in range(torch.cuda.device_count()):
        free_bytes, total = torch.cuda.mem_get_info(number)
        cards.append(
            f"{number}: {torch.cuda.get_device_name(number)}, {free_bytes / GIB:.0f} of {total / GIB:.0f} GiB free"
        )
    return "; ".join(cards)


def _registered(asked: list[str]) -> Iterator[Finding]:
    try:
        from lmms_eval.models import get_model
        from lmms_eval.tasks import TaskManager

        get_model(MODEL_ID)
        known = set(TaskManager().all_tasks)
    except Exception as error:
        yield Finding("model", False, f"{_line(error)} Install lmms-eval-mai again.")
        return
    yield Finding("model", True, f"lmms-eval knows {MODEL_ID}")
    ours = {path.stem for path in task_dir().rglob("*.yaml") if path.parent.name != "groups"}
    missing = sorted(ours - known)
    if missing:
        yield Finding("tasks", False, f"lmms-eval does not know {', '.join(missing)}: see the warnings above.")
    else:
        yield Finding("tasks", True, f"lmms-eval knows pope_s and {len(ours) - 1} more of ours in {task_dir()}")
    for task in asked:
        if task not in known:
            yield Finding("tasks", False, f"{task} is unknown: `lmms-eval --tasks list` shows all.")


def _command(model_args: str) -> Iterator[Finding]:
    from lmms_eval.utils import simple_parse_args_string

    try:
        config = parse(simple_parse_args_string(model_args))
    except Exception as error:
        yield Finding("arguments", False, _line(error))
        return
    yield Finding("arguments", True, f"mode={config.mode}, think={config.think}")
    for side in config.engines():
        yield _engine(config, side)


def _engine(config: Config, side: EngineConfig) -> Finding:
    """What of it can be known without starting it; of an endpoint, whether it answers now."""
    if side.engine == "openai":
        side = dataclasses.replace(side, arguments={**side.arguments, "retry_for": 0})
    try:
        engine: Engine = build(side, config.other(side), config.sleep)
        engine.validate()
        if side.engine == "openai":
            asyncio.run(_answers(engine))
        return Finding(side.side, True, f"{side.engine} {side.model}: {engine.describe()}")
    except Exception as error:
        return Finding(side.side, False, _line(error))


async def _answers(engine: Engine) -> None:
    await engine.start()
    await engine.close()


def _tried(what: str, find: Callable[[], str], remedy: str) -> Finding:
    try:
        return Finding(what, True, find())
    except Exception as error:
        return Finding(what, False, f"{_line(error)} {remedy}")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
