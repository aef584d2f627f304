"""The GPUs of this machine or of a text such as `2x48GiB`, and how the models of a command share them, for
`lmms-eval-mai doctor`.

The plan needs no GPU and no files of the named pairs' models.
"""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from lmms_eval_mai.cli import WIDTH
from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.engines.vllm.environment import Launcher
from lmms_eval_mai.engines.vllm.gpu_memory import AUTOMATIC, GIB, USABLE, Share, shares, ways_out
from lmms_eval_mai.engines.vllm.machine_checks import MPS_HINT, memory_bytes
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.run.config import Config

MIB = 1 << 20
MOST_GPUS = 64
"""Largest number of GPUs of one machine."""

KNOWN_GPUS = {
    "T4": 15_360,
    "L4": 23_034,
    "A10": 23_028,
    "A10G": 23_028,
    "RTX3090": 24_576,
    "RTX4080": 16_376,
    "RTX4090": 24_564,
    "RTX5090": 32_607,
    "RTXA6000": 49_140,
    "A40": 46_068,
    "L40S": 46_068,
    "A100-40GB": 40_960,
    "A100-80GB": 81_920,
    "H100": 81_559,
    "H200": 143_771,
    "B200": 183_359,
}
"""Name -> memory in MiB, as `nvidia-smi` shows it."""

PARTS_WITHOUT_MEANING = re.compile(r"nvidia|geforce|tesla|sxm\d?|pcie|hbm\d?e?|[\s_-]+")
"""Parts of a name in `nvidia-smi` that do not change the memory: `NVIDIA A100-SXM4-80GB`, `NVIDIA H100 80GB HBM3`."""


HEADINGS = ("", "GPU", "weights GiB", "share", "KV cache GiB", "KV cache tokens", "context", "")
SOURCE = (
    "Estimates from the sizes of the models, with 3.5 GiB for each engine's images, buffers and graphs. vLLM measures "
    "the memory when it starts, and it alone decides."
)


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    name: str
    total_bytes: int
    """Memory as `nvidia-smi` shows it."""


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs of a text: `L4`, `24GiB`, `23034MiB`, `2x48GiB`, `8xH100`, `L4+L40S`. Raises `ArgumentError` if
    the text is not understood."""
    gpus: list[Gpu] = []
    for part in text.split("+"):
        match = re.fullmatch(r"\s*(?:(\d{1,2})\s*[x\u00d7*]\s*)?(.*?)\s*", part, re.IGNORECASE)
        assert match is not None
        gpus += [_gpu(match[2], text)] * int(match[1] or 1)
    if not 1 <= len(gpus) <= MOST_GPUS:
        raise ArgumentError(f"--gpus {text} names {len(gpus)} GPUs: expected 1 to {MOST_GPUS}.")
    return tuple(gpus)


def _gpu(kind: str, text: str) -> Gpu:
    names = {_plain(name): name for name in KNOWN_GPUS}
    plain = _plain(kind)
    for candidate in (plain, f"rtx{plain}", re.sub(r"\d\dgb$", "", plain), re.sub(r"\d{3}gb$", "", plain)):
        if name := names.get(candidate):
            return Gpu(name, KNOWN_GPUS[name] * MIB)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(GiB|GB|G|MiB)?", kind, re.IGNORECASE)
    if match is None:
        raise ArgumentError(
            f"--gpus {text or 'without a value'} is not understood.{did_you_mean(kind, KNOWN_GPUS)} Give a number of "
            "GPUs and their memory, such as 2x48GiB, different GPUs with a plus, such as 24GiB+48GiB, or one of these "
            f"names: {', '.join(KNOWN_GPUS)}."
        )
    total = int(float(match[1]) * (MIB if (match[2] or "").lower() == "mib" else GIB))
    if not GIB <= total <= 1024 * GIB:
        raise ArgumentError(
            f"--gpus {text} is invalid: a GPU has 1 to 1,024 GiB of memory. A number without a unit is GiB. With MiB, "
            "give the memory that `nvidia-smi` shows, for example 23034MiB."
        )
    return Gpu(kind, total)


def _plain(name: str) -> str:
    """Return a name in small letters, without separators and parts that have no meaning here."""
    return PARTS_WITHOUT_MEANING.sub("", name.lower())


def visible_gpus() -> list[Gpu]:
    """Return the GPUs that vLLM can use; none if vLLM is not installed. It reads them from NVML: torch would open a
    context on each of them."""
    try:
        from vllm.platforms import current_platform
    except ImportError:
        return []
    if not current_platform.is_cuda_alike():
        return []
    return [
        Gpu(current_platform.get_device_name(number), memory_bytes(number))
        for number in range(current_platform.device_count())
    ]


def describe(config: Config, gpus: Sequence[Gpu], launcher: Launcher) -> tuple[list[str], bool]:
    """Return the lines of the report, and whether all models fit. Raises `ArgumentError`."""
    configs = [engine for engine in config.engines() if engine.engine == "vllm"]
    if not configs:
        return ["The command starts no vLLM engine."], True
    found = shares(configs, [gpu.total_bytes for gpu in gpus], launcher)
    rows = [HEADINGS, *(_row(engine, found[engine.side]) for engine in configs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    verdicts = {found[engine.side].verdict for engine in configs}
    notes = []
    if "does not fit" in verdicts:
        notes.append(f"Does not fit. {ways_out(configs)}")
    elif "tight" in verdicts:
        notes.append("Tight: vLLM chooses the longest context that fits, and the results of a run name it.")
    if "unknown" in verdicts:
        notes.append("The size of a model is unknown: it is not on this machine. Download it (`hf download`).")
    if len(configs) > 1 and set(found["small"].gpus) & set(found["large"].gpus):
        notes.append(f"The models share a GPU. {MPS_HINT}")
    used = {gpu for share in found.values() for gpu in share.gpus}
    if len(used) < len(gpus) and launcher.rank is None:
        notes.append(
            f"{len(gpus) - len(used)} of {len(gpus)} GPUs are idle. `torchrun --nproc_per_node {len(gpus)} -m "
            "lmms_eval ...` starts one pair on each GPU; large_data_parallel_size=N starts copies of the large model."
        )
    notes += [
        f"The {engine.side} model is left out, because its engine is {engine.engine}."
        for engine in config.engines()
        if engine.engine != "vllm"
    ]
    items = [textwrap.fill(note, WIDTH, initial_indent="* ", subsequent_indent="  ") for note in [*notes, SOURCE]]
    names = " + ".join(dict.fromkeys(f"{sum(gpu == one for one in gpus)} x {gpu.name}" for gpu in gpus))
    return [f"On {names}:", "", *table, "", *items], not verdicts & {"does not fit", "unknown"}


def _row(engine: EngineConfig, share: Share) -> tuple[str, ...]:
    def gib(size: int | None) -> str:
        return "?" if size is None else f"{max(0, size) / GIB:.1f}"

    given = engine.arguments.get("max_model_len")
    context = given if share.context is None else share.context
    if context in (AUTOMATIC, "auto"):
        context = "chosen by vLLM"
    return (
        f"{engine.side} {engine.model}",
        ",".join(map(str, share.gpus)),
        gib(share.weight_bytes),
        f"{USABLE if share.utilization is None else share.utilization:.0%}",
        gib(share.kv_cache_bytes),
        "?" if share.kv_cache_tokens is None else f"{share.kv_cache_tokens:,}",
        f"{context:,.0f}" if isinstance(context, int | float) else str(context or "?"),
        share.verdict,
    )
