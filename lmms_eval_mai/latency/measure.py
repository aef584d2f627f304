"""Measures a whole profile: Tables 3 and 4 and batches through an engine, Tables 1 and 2 without one."""

import datetime
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from lmms_eval_mai.contract import SIDES, Call, Engine, EngineConfig
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.transformers.options import TransformersOptions, device_of
from lmms_eval_mai.errors import ArgumentError, PromptTooLong
from lmms_eval_mai.latency.plan import Plan, Size
from lmms_eval_mai.latency.repeats import seconds_of
from lmms_eval_mai.latency.requests import Requests, prompt_size
from lmms_eval_mai.profiles.profile import BatchPoint, DecodingPoint, ImagePoint, Profile, Seconds, TtftPoint
from lmms_eval_mai.redaction import error_text, redacted
from lmms_eval_mai.run.event_loop import LoopThread
from lmms_eval_mai.run.fingerprint import version

ENGINES = ("vllm", "transformers")
"""Engines that have a tokenizer and report image tokens."""
Points = tuple[ImagePoint, ...]
Tell = Callable[[str], None]
"""Shows one line of progress."""


@dataclass(frozen=True)
class Measurements:
    """The measurements through one engine."""

    ttft: tuple[TtftPoint, ...]
    decoding: tuple[DecodingPoint, ...]
    batches: tuple[BatchPoint, ...]
    too_long: tuple[Size, ...]
    """Cells that did not fit the context."""


def profile(config: EngineConfig, plan: Plan, settings: Mapping[str, Any], tell: Tell) -> Profile:
    """Measure the model of a configuration, and return its profile. Starts and stops an engine. Raises a `MaiError`.

    `settings`: more fields for `Profile.settings`.
    """
    engine = build(config)
    engine.validate()
    loop = LoopThread()
    try:
        tell(f"{config.model}: starting {config.engine}, {engine.describe()}")
        loop.run(engine.start())
        # The batches of the transformers engine depend on the order in which its inputs are built.
        batches = config.engine == "vllm"
        found = loop.run(measure(engine, plan, tell, batches=batches))
    finally:
        try:
            loop.run(engine.close())
        finally:
            loop.close()
    device, dtype = device_of(TransformersOptions()), dtype_of(config)
    tell(f"{config.model}: preprocessing and vision encoder")  # after the engine, which needs the memory
    (preprocessing, vision), no_vision = _vision(config, plan, device, dtype)
    return Profile(
        name=short_name(config.model),
        model=config.model,
        device=device_name(device),
        engine=config.engine,
        dtype=dtype,
        versions={
            **{name: version(name) for name in ("lmms-eval-mai", "transformers", "torch")},
            "python": platform.python_version(),
            "engine": engine.identity()["engine"],
        },
        settings={
            **settings,
            "arguments": redacted(dict(config.arguments)),
            "repeats": plan.repeats,
            "slow_repeats": plan.slow_repeats,
            "warm_up": plan.warm_up,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "load_average": round(os.getloadavg()[0], 2),
            "too_long": [list(size) for size in found.too_long],
            **({"no_vision": no_vision} if no_vision else {}),
        },
        preprocessing=preprocessing,
        vision=vision,
        ttft=found.ttft,
        decoding=found.decoding,
        batches=found.batches,
    )


async def measure(engine: Engine, plan: Plan, tell: Tell, batches: bool = True) -> Measurements:
    """Measure Tables 3 and 4, and batches, on a started engine. Raises a `MaiError`."""
    requests = Requests(engine)
    tell(f"time to first token: {len(plan.ttft)} cells, {plan.repeats} times each")
    ttft_sizes, too_long = await _fitting(requests, plan.ttft, 1)
    calls = await _single(requests, plan, [(size, 1) for size in ttft_sizes], plan.repeats)
    ttft = [TtftPoint(size[0], *prompt_size(made[0]), _seconds(made)) for (size, _), made in calls.items()]
    tell(f"decoding: {len(plan.decoding) * len(plan.output_tokens)} cells, {plan.slow_repeats} times each")
    sizes, others = await _fitting(requests, plan.decoding, max(plan.output_tokens))
    if not ttft or not sizes:
        raise ArgumentError(
            "Every prompt of the profile is too long for the context of the model. Raise max_model_len."
        )
    cells = [(size, tokens) for tokens in plan.output_tokens for size in sizes]
    calls = await _single(requests, plan, cells, plan.slow_repeats)
    decoding = [
        DecodingPoint(size[0], *prompt_size(made[0]), output_tokens, _seconds(made))
        for (size, output_tokens), made in calls.items()
    ]
    too_long += others
    points: list[BatchPoint] = []
    if batches:
        sizes, others = await _fitting(requests, plan.batches, plan.batch_output_tokens)
        too_long += others
        for number in plan.batch_sizes:
            tell(f"batches of {number}: {len(sizes)} cells, {plan.slow_repeats} times each")
            points += [await _batch(requests, plan, number, size) for size in sizes]
    return Measurements(tuple(ttft), tuple(decoding), tuple(points), tuple(dict.fromkeys(too_long)))


async def _fitting(requests: Requests, sizes: Sequence[Size], output_tokens: int) -> tuple[list[Size], list[Size]]:
    """Return the sizes that fit the context with so many output tokens, and the others. Raises a `MaiError`."""
    fitting: list[Size] = []
    for size in sizes:
        try:
            await requests.call(*size, output_tokens)
        except PromptTooLong:
            continue
        fitting.append(size)
    return fitting, [size for size in sizes if size not in fitting]


async def _single(
    requests: Requests, plan: Plan, cells: Sequence[tuple[Size, int]], repeats: int
) -> dict[tuple[Size, int], list[Call]]:
    """Make single requests of each size and number of output tokens. Each round makes one request of every cell, so
    that a busy moment of the machine does not fall on one cell."""
    calls: dict[tuple[Size, int], list[Call]] = {cell: [] for cell in cells}
    for number in range(plan.warm_up + repeats):
        for size, output_tokens in cells:
            call = await requests.call(*size, output_tokens)
            if number >= plan.warm_up:
                calls[size, output_tokens].append(call)
    return calls


def _seconds(calls: Sequence[Call]) -> Seconds:
    return seconds_of([call.total_s for call in calls])


async def _batch(requests: Requests, plan: Plan, number: int, size: Size) -> BatchPoint:
    first, whole, last = [], [], None
    for _ in range(plan.warm_up + plan.slow_repeats):
        seconds, last = await requests.batch(number, *size, 1)
        first.append(seconds)
        seconds, last = await requests.batch(number, *size, plan.batch_output_tokens)
        whole.append(seconds)
    assert last is not None
    times = (seconds_of(found[plan.warm_up :]) for found in (first, whole))
    return BatchPoint(number, size[0], *prompt_size(last), plan.batch_output_tokens, *times)


def _vision(config: EngineConfig, plan: Plan, device: str, dtype: str) -> tuple[tuple[Points, Points], str]:
    """Return Tables 1 and 2, and why they are empty: the rest of a profile must not be lost for them."""
    import torch

    from lmms_eval_mai.latency.vision import VisionTower

    names = ("revision", "trust_remote_code")
    source = {name: config.arguments[name] for name in names if name in config.arguments}
    try:
        return VisionTower(config.model, device, dtype, source).measure(plan), ""
    except Exception as error:
        return ((), ()), error_text(error)
    finally:
        torch.cuda.empty_cache()


def short_name(model: str) -> str:
    """Return the last part of a path or name, and the part before it if the last one is only `small` or `large`."""
    parts = PurePath(model.rstrip("/")).parts
    return "-".join(parts[-2:] if parts[-1] in SIDES else parts[-1:])


def dtype_of(config: EngineConfig) -> str:
    """Return the type of the weights: the argument's, else the checkpoint's."""
    from transformers import AutoConfig

    given = str(config.arguments.get("dtype", "auto"))
    if given != "auto":
        return given
    try:
        found = AutoConfig.from_pretrained(os.path.expanduser(config.model)).dtype
    except Exception:  # the start of the engine fails for the same reason, and reports it
        return "float32"
    return str(found or "float32").removeprefix("torch.")


def device_name(device: str) -> str:
    """Return the name of the GPU, or of the processor with its number of cores."""
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_name(torch.device(device))
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"
