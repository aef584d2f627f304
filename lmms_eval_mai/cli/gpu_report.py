"""The plan of a command's engines on the GPUs of this or of another machine, for `lmms-eval-mai doctor`.

It needs no GPU, no vLLM and no files of the named pairs' models.
"""

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence

from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.engines.vllm.gpu_plan import pair_plan, plan_or_refusal, unknown_sizes
from lmms_eval_mai.engines.vllm.machine_checks import MPS_HINT
from lmms_eval_mai.engines.vllm.placement import Launcher
from lmms_eval_mai.engines.vllm.plan_arguments import whole_number
from lmms_eval_mai.engines.vllm.planning.advice import Refusal
from lmms_eval_mai.engines.vllm.planning.gpus import Gpu, parse_gpus
from lmms_eval_mai.engines.vllm.planning.memory import GIB
from lmms_eval_mai.engines.vllm.planning.plan import Plan
from lmms_eval_mai.engines.vllm.planning.report import SOURCE, notes, numbers, table
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.run.config import Config

WIDTH = 110
"""Columns of the report. The table of a named pair is a little narrower."""
SOLD_SIZES = (
    "Many GPUs have less memory than the size with which they are sold: an L4 of 24 GB has 22.5 GiB. A name "
    "(--gpus L4), or the memory that `nvidia-smi` shows (--gpus 23034MiB), gives a more exact plan."
)


class NoPlan(Exception):
    """Raised when the size of a model is unknown. A run then shares the memory of the GPUs equally."""


def report(text: str, config: Config) -> int:
    """Print the plan for the GPUs of a text such as `2x48GiB`. Returns the exit code: 1 if the engines do not fit, or
    if they cannot be planned."""
    try:
        lines = describe(config, parse_gpus(text), Launcher())
    except (ArgumentError, NoPlan) as error:
        print(_filled(str(error)))
        return 1
    print("\n".join(lines))
    return 0


def describe(config: Config, gpus: Sequence[Gpu], launcher: Launcher, mps: bool = False) -> list[str]:
    """Return the lines of the report. `mps`: whether NVIDIA's MPS runs on the machine.

    Raises `ArgumentError` if the engines do not fit, with what is missing and what would fit. Raises `NoPlan` if the
    size of a model is unknown.
    """
    configs = [engine for engine in config.engines() if engine.engine == "vllm"]
    if not configs:
        return ["The command starts no vLLM engine, so there is no plan of the memory."]
    plan = plan_or_refusal(configs, gpus, launcher, config.sleep)
    if plan is None:
        raise NoPlan(f"There is no plan of the GPU memory. {unknown_sizes(configs)}")
    sizes = [SOLD_SIZES] if any(gpu.name.endswith(" GiB") for gpu in gpus) else []
    if isinstance(plan, Refusal):
        raise ArgumentError(" ".join([plan.text, *sizes]))
    use = [*_needless_turns(configs, gpus, launcher, plan)] or [*_idle(config, configs, gpus, launcher, plan)]
    advice = [*notes(plan, gpus, config.max_open_samples), *use]
    if not mps and not plan.turns and plan.shares_a_gpu():
        advice.append(f"The models share a GPU. {MPS_HINT}")
    advice += [
        f"The {one.side} model is not part of the plan, because its engine is {one.engine}."
        for one in config.engines()
        if one.engine != "vllm"
    ]
    return [
        f"The plan for {machine(gpus)}:",
        "",
        *table(plan),
        "",
        *(_item(text) for text in [*advice, *sizes, SOURCE]),
    ]


def _item(text: str) -> str:
    return _filled(text, "* ", "  ")


def _filled(text: str, first: str = "", others: str = "") -> str:
    """Return the text in lines. `first` and `others`: the beginning of the first line and of the other lines."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def machine(gpus: Sequence[Gpu]) -> str:
    """Return the GPUs as text: `2 x L4`, or each one if they differ or if their memory is used."""
    name, free = gpus[0].name, min(gpu.free_bytes / GIB for gpu in gpus)
    if len(set(gpus)) == 1 and gpus[0].free_bytes >= gpus[0].usable_bytes:
        return f"{len(gpus)} x {name}"
    if len({gpu.name for gpu in gpus}) == 1:
        return f"{len(gpus)} x {name}, of which {free:.1f} GiB are free"
    return "; ".join(f"{number}: {gpu.name}, {gpu.free_bytes / GIB:.1f} GiB free" for number, gpu in enumerate(gpus))


def _needless_turns(
    configs: Sequence[EngineConfig], gpus: Sequence[Gpu], launcher: Launcher, plan: Plan
) -> Iterator[str]:
    """Yield the advice to leave out `sleep=true` if the engines fit without it, with the same context."""
    if not plan.turns:
        return
    found = plan_or_refusal(configs, gpus, launcher, turns=False)
    if isinstance(found, Plan) and found.context() >= plan.context():
        yield "Leave out sleep=true: the models fit without turns, with the same context, and are then faster."


def _idle(
    config: Config, configs: Sequence[EngineConfig], gpus: Sequence[Gpu], launcher: Launcher, plan: Plan
) -> Iterator[str]:
    """Yield how to use GPUs that the plan leaves idle."""
    used = {number for engine in plan.engines for number in engine.request.gpus}
    idle = [number for number in range(len(gpus)) if number not in used]
    if not idle or launcher.rank is not None:
        return
    text = f"GPU{'s' * (len(idle) > 1)} {numbers(idle)} {'are' if len(idle) > 1 else 'is'} idle."
    alone = _one_pair_per_gpu(config, configs, gpus)
    if alone is not None:
        context = min(engine.limits.context for engine in alone.engines)
        what = "pair" if len(configs) > 1 else "model"
        yield (
            f"{text} `torchrun --nproc_per_node {len(gpus)} -m lmms_eval ...` uses all {len(gpus)} GPUs: each rank "
            f"runs its own {what} on its own GPU, with a context of {context:,} tokens."
        )
    elif replicas := _replicas(config, configs, gpus, plan):
        yield f"{text} {replicas} uses more of them: each replica answers a part of the calls."
    elif any("devices" in one.arguments for one in configs):
        yield f"{text} The devices of the command leave {'them' if len(idle) > 1 else 'it'} out."
    else:
        yield f"{text} Servers can use all GPUs: start `vllm serve` on them, and give their addresses (small=, large=)."


def _one_pair_per_gpu(config: Config, configs: Sequence[EngineConfig], gpus: Sequence[Gpu]) -> Plan | None:
    """Return the plan of a rank that has one GPU. None: it does not fit, or the arguments name GPUs."""
    if any(
        name in one.arguments for one in configs for name in ("devices", "tensor_parallel_size", "data_parallel_size")
    ):
        return None
    try:
        smallest = min(gpus, key=lambda gpu: gpu.free_bytes)
        return pair_plan(configs, [smallest], Launcher(), config.sleep)
    except ArgumentError:
        return None


def _replicas(config: Config, configs: Sequence[EngineConfig], gpus: Sequence[Gpu], plan: Plan) -> str | None:
    """Return the argument with which the largest number of replicas of the last model fit. None: no more than now
    fit."""
    *rest, last = configs
    now = whole_number(last.arguments, "data_parallel_size") or 1
    for count in range(len(gpus), now, -1):
        replicated = dataclasses.replace(last, arguments={**last.arguments, "data_parallel_size": count})
        try:
            found = pair_plan([*rest, replicated], gpus, Launcher(), config.sleep)
        except (ArgumentError, ValueError):
            continue
        if found is None or (found.shares_a_gpu() and not plan.shares_a_gpu()):
            continue
        pairs = zip(found.engines, plan.engines, strict=True)
        if all(new.limits.context >= old.limits.context for new, old in pairs):
            return f"{last.side}_data_parallel_size={count}"
    return None
