"""The GPUs of a text such as `2x48GiB` or `L4`, for `lmms-eval-mai doctor --gpus`."""

import re
from dataclasses import dataclass

from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.engines.vllm.gpu_memory import GIB
from lmms_eval_mai.errors import ArgumentError

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
