"""The GPUs of a machine: their memory, from NVML or from a text such as `2x48GiB` or `L4`."""

import difflib
import re
from dataclasses import dataclass

from lmms_eval_mai.engines.vllm.planning.memory import GIB
from lmms_eval_mai.errors import ArgumentError

CUDA_SHARE = 0.985
"""CUDA reports 1 to 2% less memory than NVML and the data sheets: 23.64 of 24 GiB, 79.1 of 79.65 GiB."""
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
"""Name -> memory in MiB, as `nvidia-smi` shows it. vLLM 0.32 needs at least a T4 (compute capability 7.5)."""

PARTS_WITHOUT_MEANING = re.compile(r"nvidia|geforce|tesla|sxm\d?|pcie|hbm\d?e?")
"""Parts of a name in `nvidia-smi` that do not change the memory: `NVIDIA A100-SXM4-80GB`, `NVIDIA H100 80GB HBM3`."""


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    name: str
    total_bytes: int
    """Memory as NVML reports it."""
    free_bytes: int

    @property
    def usable_bytes(self) -> int:
        """The memory that CUDA reports as the GPU's total. vLLM's shares are shares of it."""
        return int(self.total_bytes * CUDA_SHARE)


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs of a text: `L4`, `24GiB`, `23034MiB`, `2x48GiB`, `8xH100`, `L4+L40S`. All of their memory is
    free.

    Raises `ArgumentError` if the text is not understood.
    """
    gpus = [gpu for part in text.split("+") for gpu in _equal_gpus(part.strip(), text)]
    if not 1 <= len(gpus) <= MOST_GPUS:
        count = f"more than {MOST_GPUS}" if gpus else "no"
        raise ArgumentError(f"--gpus {text} names {count} GPUs: expected 1 to {MOST_GPUS}.")
    return tuple(gpus)


def _equal_gpus(part: str, text: str) -> tuple[Gpu, ...]:
    """Return the GPUs of a part such as `2x48GiB`. `text`: all parts."""
    match = re.fullmatch(r"(?:(\d+)\s*[x\u00d7*]\s*)?(.*)", part, re.IGNORECASE)
    assert match is not None
    return (_one_gpu(match[2], text),) * min(int(match[1] or 1), MOST_GPUS + 1)


def _one_gpu(kind: str, text: str) -> Gpu:
    if name := _known_name(kind):
        total = KNOWN_GPUS[name] * MIB
        return Gpu(name, total, int(total * CUDA_SHARE))
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(GiB|GB|G|MiB)?", kind, re.IGNORECASE)
    if match is None:
        raise _not_understood(kind, text)
    in_mib = (match[2] or "").lower() == "mib"
    total = int(float(match[1]) * (MIB if in_mib else GIB))
    if not GIB <= total <= 1024 * GIB:
        raise ArgumentError(
            f"--gpus {text} is invalid: a GPU has 1 to 1,024 GiB of memory. A number without a unit is GiB. With MiB, "
            "give the memory that `nvidia-smi` shows, for example 23034MiB."
        )
    return Gpu(f"{match[1]} {'MiB' if in_mib else 'GiB'}", total, int(total * CUDA_SHARE))


def _known_name(kind: str) -> str | None:
    """Return the name in `KNOWN_GPUS`, None if there is none. `RTX` may be left out, and the memory of a GPU with a
    single size may be added (`H100 80GB`)."""
    names = {_plain(name): name for name in KNOWN_GPUS}
    plain = _plain(kind)
    if name := names.get(plain) or names.get(f"rtx{plain}"):
        return name
    for short, name in names.items():
        gigabytes = plain.removeprefix(short).removesuffix("gb") if plain.startswith(short) else ""
        if gigabytes.isdecimal() and 0.99 <= int(gigabytes) / (KNOWN_GPUS[name] / 1024) <= 1.08:  # 48 GB are 45 GiB
            return name
    return None


def _not_understood(kind: str, text: str) -> ArgumentError:
    plain = re.sub(r"[x*]\d{1,2}$", "", _plain(kind))  # L4x2
    names = {_plain(name): name for name in KNOWN_GPUS}
    has_name = re.match("[a-z]", plain) is not None
    longer = [one for one in names if has_name and one.startswith(plain)]
    near = longer or (difflib.get_close_matches(plain, names, n=3, cutoff=0.5) if has_name else [])
    hint = f" Did you mean {' or '.join(names[one] for one in near)}?" if near else ""
    return ArgumentError(
        f"--gpus {text or 'without a value'} is not understood.{hint} Give a number of GPUs and their memory, such as "
        f"2x48GiB, different GPUs with a plus, such as 24GiB+48GiB, or one of these names: {', '.join(KNOWN_GPUS)}."
    )


def _plain(name: str) -> str:
    """Return a name in small letters, without separators and parts that have no meaning here."""
    parts = re.split(r"[\s_-]+", name.lower())
    return "".join(part for part in parts if not PARTS_WITHOUT_MEANING.fullmatch(part))
