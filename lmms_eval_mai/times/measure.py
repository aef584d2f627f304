"""Measures a profile: Tables 3 and 4 and batches through an engine, Tables 1 and 2 without one.

The requests to the engine have exact sizes. They are timed one at a time or all at once. Each request has an image of
its own, which is the first part of the prompt, so no cache has any part of it.
"""

import asyncio
import bisect
import datetime
import os
import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import PIL.Image

from lmms_eval_mai.contract import SIDES, Call, CallKey, Engine, EngineConfig, Image, Message, Prompt, Sampling
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.transformers.options import TransformersOptions, device_of
from lmms_eval_mai.errors import ArgumentError, PromptTooLong
from lmms_eval_mai.redaction import error_text, redacted
from lmms_eval_mai.run.loop import LoopThread
from lmms_eval_mai.run.totals import version
from lmms_eval_mai.times.profile import Profile, Row, row, summary, table

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


# --- requests of exact sizes ---

TASK = "profile"
VISION_WARM_UP = 3
"""Number of runs of the vision encoder that do not count. They are short, and the first ones take many times longer."""
WORD = " red"
"""A token in most tokenizers."""


def noise(side: int) -> PIL.Image.Image:
    """Return a new square image of noise."""
    return PIL.Image.frombytes("RGB", (side, side), random.randbytes(3 * side * side))


class Requests:
    """Makes requests to one started engine, which must have a tokenizer and report image tokens."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._number = engine, 0
        self._others: dict[int, int] = {}
        """Width of the image -> tokens of the prompt that are neither image nor text: those of the template."""
        self._texts: dict[int, str] = {}
        """Number of tokens -> a text with so many."""

    async def make(self, number: int, image: int, text_tokens: int, output_tokens: int) -> tuple[float, Call]:
        """Make so many requests at once, each with exactly `output_tokens` output tokens. Returns the seconds from the
        first request to the end of the last one, and one of the calls. Raises a `MaiError`."""
        if image not in self._others:
            _, call = await self._timed([self._prompt(image, WORD)], 1)
            self._others[image] = sizes(call)["text_tokens"] - self._count(WORD)
        # The image makes each prompt new, so all prompts of a size have the same text.
        text = self._text(max(1, text_tokens - self._others[image]))
        return await self._timed([self._prompt(image, text) for _ in range(number)], output_tokens)

    async def _timed(self, prompts: Sequence[Prompt], output_tokens: int) -> tuple[float, Call]:
        sampling = Sampling(max_tokens=output_tokens, ignore_eos=True)
        began = time.perf_counter()
        calls = await asyncio.gather(*(self._engine.generate(prompt, sampling) for prompt in prompts))
        seconds = time.perf_counter() - began
        for call in calls:
            if call.output_tokens != output_tokens:
                raise PromptTooLong(
                    f"The context of the model has space for {call.output_tokens} instead of {output_tokens} output "
                    f"tokens after a prompt of {call.prompt_tokens} tokens."
                )
        return seconds, calls[0]

    def _text(self, tokens: int) -> str:
        """Return the longest text that has at most so many tokens."""
        if tokens not in self._texts:
            words = bisect.bisect_right(range(2, tokens + 1), tokens, key=lambda number: self._count(WORD * number))
            self._texts[tokens] = WORD * (words + 1)
        return self._texts[tokens]

    def _count(self, text: str) -> int:
        tokens = self._engine.count_tokens(text)
        assert tokens is not None
        return tokens

    def _prompt(self, side: int, text: str) -> Prompt:
        self._number += 1
        image = Image(noise(side), f"{TASK}-{side}-{self._number}-{random.random()}")
        return Prompt((Message("user", (image, text)),), CallKey(TASK, self._number, 0, "large", "task"))


def sizes(call: Call) -> dict[str, int]:
    """Return the image tokens and the other tokens of a call's prompt, as the engine counted them."""
    assert call.image_tokens is not None
    return {"image_tokens": call.image_tokens, "text_tokens": call.prompt_tokens - call.image_tokens}


# --- the measurement ---


def profile(config: EngineConfig, plan: Plan, settings: Mapping[str, Any], tell: Tell) -> Profile:
    """Measure the model of a configuration, and return its profile. Starts and stops an engine. Raises a `MaiError`.

    `settings`: more fields for `Profile.settings`.
    """
    import torch

    engine = build(config)
    loop = LoopThread()
    try:
        tell(f"{config.model}: starting {config.engine}, {engine.description}")
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
    source = {name: config.arguments[name] for name in ("revision", "trust_remote_code") if name in config.arguments}
    images: list[Row] = []
    no_vision = ""
    try:
        images = list(measure_vision(config.model, device, dtype, source, plan.images, plan.repeats))
    except Exception as error:  # the rest of a profile must not be lost for this
        no_vision = error_text(error)
    finally:
        torch.cuda.empty_cache()
    return Profile(
        name=short_name(config.model),
        model=config.model,
        device=device_name(device),
        engine=config.engine,
        dtype=dtype,
        versions={
            **{name: version(name) for name in ("lmms-eval-mai", "transformers", "torch")},
            "python": platform.python_version(),
            "engine": f"{config.engine} {version(config.engine)}",
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
        fitting = []
        for size in wanted:
            try:
                await requests.make(1, *size, max(output_tokens))
                fitting.append(size)
            except PromptTooLong:
                too_long[size] = None
        if kind != "batches" and not fitting:
            raise ArgumentError(
                "Every prompt of the profile is too long for the context of the model. Raise max_model_len."
            )
        cells = [(number, *size, tokens) for number in batch_sizes for size in fitting for tokens in output_tokens]
        tell(f"{kind}: {len(cells)} cells, {repeats} times each")
        rows += await _measure(requests, kind, cells, plan.warm_up, repeats)
    return rows, list(too_long)


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


def measure_vision(
    model: str, device: str, dtype: str, source: Mapping[str, Any], sides: tuple[int, ...], repeats: int
) -> Iterator[Row]:
    """Yield the rows of Tables 1 and 2, with the checkpoint's own processor in transformers. The vision encoder has
    random weights, because the weights do not change its time. Of the language model, only one layer is built.

    `source`: arguments for transformers. `sides`: width and height of the images. Raises transformers' errors.
    """
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

    from lmms_eval_mai.engines.transformers.inputs import build_inputs, images_of

    path = os.path.expanduser(model)
    processors: Any = AutoProcessor
    models: Any = AutoModelForImageTextToText
    processor = processors.from_pretrained(path, **source)
    config = AutoConfig.from_pretrained(path, **source)
    config.get_text_config().num_hidden_layers = 1
    with torch.device(device):
        encoder = models.from_config(config, dtype=getattr(torch, dtype))  # its vision encoder is complete
    encoder = encoder.to(device).eval()

    def wait_for_device() -> None:
        """Wait for the work of a GPU, which goes on after a call returns."""
        if device != "cpu":
            torch.accelerator.synchronize(torch.device(device))

    def inputs(side: int) -> Any:
        messages = (Message("user", (Image(noise(side), TASK), "the")),)
        return build_inputs(processor, [Prompt(messages, CallKey(TASK, 0, 0, "large", "task"))])

    def image_tokens(side: int) -> int:
        return int((inputs(side)["input_ids"] == getattr(processor, "image_token_id", None)).sum())

    def preprocessing_s(side: int) -> float:
        image = noise(side)
        began = time.perf_counter()
        processor.image_processor(images=[image], return_tensors="pt")
        return time.perf_counter() - began

    def vision_s(side: int) -> float:
        tensors = images_of(inputs(side))
        moved = {
            name: tensor.to(device, encoder.dtype if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in tensors.items()
        }
        wait_for_device()
        began = time.perf_counter()
        with torch.inference_mode():
            encoder.get_image_features(**moved)
        wait_for_device()
        return time.perf_counter() - began

    kinds: dict[str, Callable[[int], float]] = {"preprocessing": preprocessing_s, "vision": vision_s}
    for kind, seconds_of in kinds.items():
        for side in sides:
            found = [seconds_of(side) for _ in range(VISION_WARM_UP + repeats)][VISION_WARM_UP:]
            yield row(kind, summary(found), image=side, image_tokens=image_tokens(side))


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
