"""Check the packages, the devices, and whether lmms-eval knows the model and the tasks.

List the named pairs, and print the folder of the task files. After a whole lmms-eval command, with all its arguments,
also tell which engines it would start on which devices, and whether its models and endpoints can be reached. Nothing is
started or downloaded. With --gpus, only how the models share such GPUs is shown. lmms-eval itself refuses wrong
options, tasks and data sets before anything starts, and vLLM alone decides whether an engine fits into the memory.
"""

import argparse
import asyncio
import dataclasses
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import psutil

from lmms_eval_mai import redaction
from lmms_eval_mai.cli import gpus
from lmms_eval_mai.cli.terminal import log_warnings_only, values_of
from lmms_eval_mai.contract import Engine, EngineConfig
from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.checkpoints import check_checkpoint, local_folder
from lmms_eval_mai.engines.vllm.environment import INSTALL
from lmms_eval_mai.errors import ArgumentError, MaiError
from lmms_eval_mai.plugin import MODEL_ID, task_dir
from lmms_eval_mai.run import presets
from lmms_eval_mai.run.config import Config, parse, refuse_lmms_evals_own

LIMIT_S = 5
"""Seconds for an answer of the hub."""
INDENT = " " * 25
"""Before the further lines of a text."""
REMEDIES = {
    "lmms_eval": "Run `pip install lmms-eval`.",
    "torch": "Run `pip install torch`.",
    "torchvision": "Install torch and torchvision again, both from one index, because their builds must be the same: "
    "`pip install --force-reinstall torch torchvision`, with one --index-url for both if you use one.",
    "transformers": "Run `pip install transformers`.",
    "vllm": f"engine=vllm needs it. {INSTALL}",
}
"""Package -> what to do if it cannot be imported."""

Mark = Literal["ok", "PROBLEM", "warning"]
"""`PROBLEM`: the command fails. `warning`: it runs, but perhaps not as the user wants."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    mark: Mark
    text: str
    """What was found. For a problem or a warning, also what to do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="the model; with --model and without --model_args, the defaults are checked")
    parser.add_argument("--model_args", help="check these model arguments (format as in lmms-eval)")
    parser.add_argument("--pair", help="check this named pair, or the YAML file of one, as in the model arguments")
    parser.add_argument("--tasks", help="check that lmms-eval knows these tasks")
    parser.add_argument("--include_path", help="a folder with more tasks, as in lmms-eval")
    parser.add_argument(
        "--gpus",
        metavar="GIB",
        help="show how the models of the command (default: the default pair) would share GPUs with this memory in GiB: "
        "24 is one GPU, and 48,48 are two",
    )


def main(given: argparse.Namespace) -> int:
    """Run the command. Returns the exit code: 1 if there is a problem, else 0. Raises `ArgumentError`."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # the report should fit one screen
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # no messages about retries
    log_warnings_only()
    if given.gpus is None:
        return report(examine(given))
    config, finding = check_arguments(given)
    if config is None:
        return report([finding])
    print("\n".join(gpus.describe(config, gpus.parse_gpus(given.gpus))))
    return 0


def report(findings: Iterable[Finding]) -> int:
    problems = 0
    for finding in findings:
        problems += finding.mark == "PROBLEM"
        text = finding.text.replace("\n", f"\n{INDENT}")
        print(f"{finding.mark:>8}  {finding.name:<14} {text}", flush=True)
    checked = "lmms-eval itself checks its other options and data sets."
    print(f"\n{problems} problem{'s' * (problems != 1)}." if problems else f"\nNo problem found. {checked}")
    return 1 if problems else 0


def examine(given: argparse.Namespace) -> Iterator[Finding]:
    """Return the findings one by one, because some checks take seconds. The arguments come first: a typo in them is
    then shown before the slow imports."""
    has_command = (given.model, given.model_args, given.pair) != (None, None, None)
    config, finding = check_arguments(given)
    yield finding if has_command else Finding("pairs", "ok", "\n".join(map(_pair, presets.names())))
    yield check_hub()  # before the imports that read HF_HUB_OFFLINE
    yield Finding("python", "ok", sys.version.split()[0])
    yield from map(check_package, REMEDIES)
    yield Finding("devices", "ok", devices())
    yield from check_tasks(given.tasks, given.include_path)
    if config is not None:
        if has_command:
            yield from (check_engine(config, engine) for engine in config.engines())
        yield from check_memory(config)


def _pair(name: str) -> str:
    default = " (default)" if name == presets.DEFAULT else ""
    return f"{name:20} {' + '.join(presets.models(name))}{default}"


def check_arguments(given: argparse.Namespace) -> tuple[Config | None, Finding]:
    """Read the model and its arguments. No configuration: they are wrong, or those of another model."""
    if given.model not in (None, MODEL_ID):
        hint = did_you_mean(given.model, [MODEL_ID])
        text = f"Only {MODEL_ID} can be checked here, and --model is {given.model}.{hint}"
        return None, Finding("model", "PROBLEM", text)
    try:
        values = values_of("--model_args", given.model_args or "") | ({"pair": given.pair} if given.pair else {})
        refuse_lmms_evals_own(values)
        config = parse(values)
    except Exception as error:
        return None, Finding("arguments", "PROBLEM", _text(error))
    chosen = f"method={config.method.name}"
    return config, Finding("arguments", "ok", f"{chosen}, think={config.think}, decoding={config.decoding}")


def _text(error: BaseException) -> str:
    """Return the message as one line: whole for errors of this package, shortened for errors of other libraries."""
    return " ".join(str(error).split()) if isinstance(error, MaiError) else redaction.error_text(error)


# --- the machine ------------------------------------------------------------------------------------------


def check_hub() -> Finding:
    """Check that the Hugging Face hub answers. If it does not, this process uses only the cache, because the libraries
    would retry each request for up to a minute. Some of them read HF_HUB_OFFLINE only when they are imported."""
    from huggingface_hub import constants, get_session

    only_cache = "Only models and data sets in the cache can be used."
    if constants.is_offline_mode():
        return Finding("hub", "ok", f"HF_HUB_OFFLINE is set. {only_cache}")
    try:
        if get_session().head(constants.ENDPOINT, timeout=LIMIT_S).status_code < 500:
            return Finding("hub", "ok", "the Hugging Face hub answers")
    except Exception:  # the kind of error is that of the library behind it
        pass
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants.HF_HUB_OFFLINE = True
    text = f"{constants.ENDPOINT} cannot be reached. {only_cache} Set HF_HUB_OFFLINE=1, or a run retries for minutes."
    return Finding("hub", "warning", text)


def check_package(name: str) -> Finding:
    """Import a package. One that another engine could do without is only a warning: `check_engine` tells if not."""
    try:
        module = importlib.import_module(name)
        version = getattr(module, "__version__", None) or importlib.metadata.version(name.replace("_", "-"))
        return Finding(name, "ok", version)
    except Exception as error:
        text = f"{name} cannot be imported ({_text(error).rstrip('.')}). {REMEDIES[name]}"
        return Finding(name, "warning" if name == "vllm" else "PROBLEM", text)


def devices() -> str:
    """Return the GPUs, or the cores and the memory of a machine without one."""
    if found := gpus.visible_gpus():
        return "; ".join(f"{number}: {name}, {memory:.0f} GiB" for number, (name, memory) in enumerate(found))
    memory = psutil.virtual_memory()
    free = f"{memory.available / gpus.GIB:.0f} of {memory.total / gpus.GIB:.0f} GiB of memory free"
    return f"no GPU that vLLM can use; {len(os.sched_getaffinity(0))} CPU cores, {free}"


def check_memory(config: Config) -> Iterator[Finding]:
    """Show how the models share the GPUs of this machine."""
    found = gpus.visible_gpus()
    if found and any(engine.engine == "vllm" for engine in config.engines()):
        rank = os.environ.get("LOCAL_RANK")
        try:
            lines = gpus.describe(config, [memory for _, memory in found], None if rank is None else int(rank))
        except ArgumentError as error:
            yield Finding("memory", "PROBLEM", str(error))
        else:
            yield Finding("memory", "ok", "\n".join(lines))


# --- lmms-eval --------------------------------------------------------------------------------------------


def check_tasks(wanted: str | None, include_path: str | None) -> Iterator[Finding]:
    """Check that lmms-eval knows the model, our tasks, and the tasks of the command."""
    try:
        from lmms_eval.models import get_model
        from lmms_eval.tasks import TaskManager

        get_model(MODEL_ID)
        manager: Any = TaskManager(include_path=include_path)
    except Exception as error:
        text = f"{MODEL_ID} cannot be loaded ({_text(error).rstrip('.')}). Install lmms-eval-mai again."
        yield Finding("model", "PROBLEM", text)
        return
    yield Finding("model", "ok", f"lmms-eval knows {MODEL_ID}")
    ours = {path.stem for path in task_dir().rglob("*.yaml")}
    if missing := sorted(ours - set(manager.all_tasks)):
        remedy = "The warnings above say why; if there are none, install lmms-eval-mai again."
        yield Finding("tasks", "PROBLEM", f"lmms-eval does not know {', '.join(missing)}. {remedy}")
    elif not wanted:
        yield Finding("tasks", "ok", f"lmms-eval knows the {len(ours)} tasks of lmms-eval-mai in {task_dir()}")
    for name in filter(None, (wanted or "").split(",")):
        if manager.match_tasks([name]) or os.path.exists(name):  # a pattern, or the path of a task file
            yield Finding("tasks", "ok", f"lmms-eval knows {name}")
        else:
            hint = did_you_mean(name, manager.all_tasks) or " `lmms-eval --tasks list` shows all tasks."
            yield Finding("tasks", "PROBLEM", f"{name} is unknown to lmms-eval.{hint}")


# --- models and endpoints ---------------------------------------------------------------------------------


def check_engine(config: Config, engine_config: EngineConfig) -> Finding:
    """Check one engine of a run without starting it. An endpoint is asked whether it answers."""
    if engine_config.engine == "openai":
        engine_config = dataclasses.replace(engine_config, arguments={**engine_config.arguments, "retry_for": 0})
    try:
        if engine_config.engine in ("vllm", "transformers"):
            check_model(engine_config)
        engine = build(engine_config, config.other(engine_config))
        if engine_config.attention:
            from lmms_eval_mai.run.evaluation import sparse_of  # takes seconds

            sparse_of(config)
        if engine_config.engine == "openai":
            asyncio.run(_start_and_close(engine))
    except Exception as error:
        return Finding(engine_config.side, "PROBLEM", _text(error))
    text = f"{engine_config.engine} {engine_config.model}: {engine.description}"
    return Finding(engine_config.side, "ok", text)


def check_model(config: EngineConfig) -> None:
    """Refuse a model that is neither on this machine nor can be downloaded. Raises `ArgumentError`."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    check_checkpoint(config.side, config.model)
    if "://" in config.model or os.environ.get("VLLM_USE_MODELSCOPE"):
        return
    if local_folder(config.model, config.arguments.get("revision")):
        return
    if constants.is_offline_mode():
        raise ArgumentError(
            f"{config.model} is not in the cache of the Hugging Face hub, which is not used or does not answer. "
            f"Download it with `hf download {config.model}`, or give the folder of a checkpoint."
        )
    try:
        HfApi().auth_check(config.model)
    except HfHubHTTPError as error:
        raise ArgumentError(
            f"The hub does not give {config.side}={config.model} (HTTP {error.response.status_code}). Check its name. "
            "If it needs permission, get it on its page and run `hf auth login`."
        ) from error


async def _start_and_close(engine: Engine) -> None:
    await engine.start()
    await engine.close()
