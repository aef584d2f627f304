"""Measures a profile: Tables 3 and 4 and batches through an engine, Tables 1 and 2 without one."""

import datetime
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from lmms_eval_mai.contract import SIDES, Engine, EngineConfig
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.transformers.options import TransformersOptions, device_of
from lmms_eval_mai.errors import ArgumentError, PromptTooLong
from lmms_eval_mai.redaction import error_text, redacted
from lmms_eval_mai.run.event_loop import LoopThread
from lmms_eval_mai.run.fingerprint import version
from lmms_eval_mai.times.profile import Profile, Row, row, summary, table
from lmms_eval_mai.times.requests import Requests, sizes

Size = tuple[int, int]
"""Width and height of the image in pixels, and the other tokens of the prompt."""
Tell = Callable[[str], None]
"""Shows one line of progress."""


@dataclass(frozen=True)
class Plan:
    """The cells of all tables. Cells that do not fit the context of the model are left out."""

    images: tuple[int, ...]
    """Tables 1 and 2."""
    ttft: tuple[Size, ...]
    """Table 3."""
    decoding: tuple[Size, ...]
    """Table 4, with each number of `output_tokens`."""
    output_tokens: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    batches: tuple[Size, ...]
    batch_output_tokens: int
    repeats: int
    """Measurements of each cell of Tables 1 to 3."""
    slow_repeats: int
    """Measurements of each cell of Table 4 and of each batch, which take longer."""
    warm_up: int = 1
    """Measurements of each cell before them that do not count."""


FULL = Plan(
    images=(256, 512, 1024, 2048, 4096),
    ttft=tuple((image, text) for image in (256, 512, 1024) for text in (64, 256, 512, 1024, 2048, 4096, 7168)),
    decoding=((256, 64), (256, 256), (512, 64), (512, 256)),
    output_tokens=(8, 128, 256, 512),
    batch_sizes=(1, 8, 32, 128),
    batches=((512, 64), (512, 512)),
    batch_output_tokens=128,
    repeats=20,
    slow_repeats=5,
    warm_up=3,
)
"""The cells of the paper, longer prompts (the paper profiled up to 8,192 tokens), and batches."""
QUICK = Plan(
    images=(64, 128, 256, 512),
    ttft=tuple((image, text) for image in (64, 256, 512) for text in (48, 128, 512, 1024)),
    decoding=((64, 64), (256, 64), (256, 512)),
    output_tokens=(4, 16, 64),
    batch_sizes=(1, 8, 32, 128),
    batches=((256, 64), (512, 64)),
    batch_output_tokens=16,
    repeats=3,
    slow_repeats=3,
)
"""Some minutes on a CPU with the demo pair."""


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
        rows, too_long = loop.run(measure(engine, plan, tell, batches=config.engine == "vllm"))
    finally:
        try:
            loop.run(engine.close())
        finally:
            loop.close()
    device, dtype = device_of(TransformersOptions()), _dtype_of(config)
    tell(f"{config.model}: preprocessing and vision encoder")  # after the engine, which needs the memory
    images, no_vision = _vision(config, plan, device, dtype)
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
            **{name: getattr(plan, name) for name in ("repeats", "slow_repeats", "warm_up")},
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "load_average": round(os.getloadavg()[0], 2),
            "too_long": [list(size) for size in too_long],
            **({"no_vision": no_vision} if no_vision else {}),
        },
        rows=table([*images, *rows]),
    )


async def measure(engine: Engine, plan: Plan, tell: Tell, batches: bool = True) -> tuple[list[Row], list[Size]]:
    """Measure Tables 3 and 4, and batches, on a started engine. Returns the rows, and the cells that did not fit the
    context. Raises a `MaiError`."""
    requests = Requests(engine)
    rows: list[Row] = []
    too_long: dict[Size, None] = {}
    parts = [
        ("ttft", plan.ttft, (1,), (1,), plan.repeats),
        ("decoding", plan.decoding, plan.output_tokens, (1,), plan.slow_repeats),
        ("batches", plan.batches, (1, plan.batch_output_tokens), plan.batch_sizes, plan.slow_repeats),
    ]
    for kind, wanted, output_tokens, batch_sizes, repeats in parts if batches else parts[:2]:
        fitting = [size for size in wanted if await _fits(requests, size, max(output_tokens))]
        too_long |= dict.fromkeys(size for size in wanted if size not in fitting)
        if kind != "batches" and not fitting:
            raise ArgumentError(
                "Every prompt of the profile is too long for the context of the model. Raise max_model_len."
            )
        cells = [(number, *size, tokens) for number in batch_sizes for size in fitting for tokens in output_tokens]
        tell(f"{kind}: {len(cells)} cells, {repeats} times each")
        rows += await _measure(requests, kind, cells, plan.warm_up, repeats)
    return rows, list(too_long)


async def _fits(requests: Requests, size: Size, output_tokens: int) -> bool:
    """Return whether a size fits the context with so many output tokens. Raises a `MaiError`."""
    try:
        await requests.make(1, *size, output_tokens)
    except PromptTooLong:
        return False
    return True


async def _measure(
    requests: Requests, kind: str, cells: Sequence[tuple[int, int, int, int]], warm_up: int, repeats: int
) -> list[Row]:
    """Measure each cell: a batch size, width of the image, other tokens and output tokens. Each round measures every
    cell once, so that a busy moment of the machine does not fall on one cell."""
    seconds: dict[tuple[int, ...], list[float]] = {cell: [] for cell in cells}
    prompts: dict[tuple[int, ...], dict[str, int]] = {}
    for _ in range(warm_up + repeats):
        for cell in cells:
            together_s, call = await requests.make(*cell)
            seconds[cell].append(together_s if kind == "batches" else call.total_s)
            prompts[cell] = sizes(call)
    rows = []
    for cell in cells:
        number, image, _, output_tokens = cell
        found = summary(seconds[cell][warm_up:])
        rows.append(row(kind, found, batch_size=number, image=image, output_tokens=output_tokens, **prompts[cell]))
    return rows


def _vision(config: EngineConfig, plan: Plan, device: str, dtype: str) -> tuple[list[Row], str]:
    """Return Tables 1 and 2, and why they are empty: the rest of a profile must not be lost for them."""
    import torch

    from lmms_eval_mai.times import vision

    source = {name: config.arguments[name] for name in ("revision", "trust_remote_code") if name in config.arguments}
    try:
        return list(vision.measure(config.model, device, dtype, source, plan.images, plan.repeats)), ""
    except Exception as error:
        return [], error_text(error)
    finally:
        torch.cuda.empty_cache()


def short_name(model: str) -> str:
    """Return the last part of a path or name, and the part before it if the last one is only `small` or `large`."""
    parts = PurePath(model.rstrip("/")).parts
    return "-".join(parts[-2:] if parts[-1] in SIDES else parts[-1:])


def _dtype_of(config: EngineConfig) -> str:
    """Return the type of the weights: the argument's, else the checkpoint's."""
    from transformers import AutoConfig

    given = str(config.arguments.get("dtype", "auto"))
    if given == "auto":
        try:
            given = str(AutoConfig.from_pretrained(os.path.expanduser(config.model)).dtype)
        except Exception:  # vLLM reads checkpoints that transformers does not know; a profile must not be lost for this
            return "float32"
    return given.removeprefix("torch.").replace("None", "float32")


def device_name(device: str) -> str:
    """Return the name of the GPU, or of the processor with its number of cores."""
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_name(torch.device(device))
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"
