"""The GPUs of a machine: their memory, from NVML or from a text such as `2x48GiB` or `L4`."""

import difflib
import re
from dataclasses import dataclass

from lmms_eval_mai.engines.vllm.planning.memory import GIB
from lmms_eval_mai.errors import ArgumentError

CUDA_SHARE = 0.985
"""CUDA reports 1 to 2% less memory than NVML and the data sheets: 23.64 of 24 GiB, 79.1 of 79.65 GiB."""
MIB = 1 << 20

KNOWN_GPUS = {
    "T4": 15_360,
    "V100-32GB": 32_768,
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
    """Return the GPUs of a text: `L4`, `24GiB`, `2x48GiB`, `8xH100`. All of their memory is free.

    Raises `ArgumentError` if the text is not understood.
    """
    match = re.fullmatch(r"(?:(\d+)\s*x\s*)?(.*)", text.strip(), re.IGNORECASE)
    assert match is not None
    gpu = _one_gpu(match[2], text)
    number = int(match[1] or 1)
    if not 1 <= number <= 64:
        raise ArgumentError(f"--gpus {text} names {number} GPUs: expected 1 to 64.")
    return (gpu,) * number


def _one_gpu(kind: str, text: str) -> Gpu:
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*(GiB|GB|G)?", kind, re.IGNORECASE):
        total = int(float(match[1]) * GIB)
        if not GIB <= total <= 1024 * GIB:
            raise ArgumentError(f"--gpus {text} is invalid: a GPU has 1 to 1,024 GiB of memory.")
        return Gpu(f"{match[1]} GiB", total, int(total * CUDA_SHARE))
    names = {_plain(name): name for name in KNOWN_GPUS}
    name = names.get(_plain(kind).removeprefix("nvidia"))
    if name is None:
        longer = [plain for plain in names if plain.startswith(_plain(kind)) and kind]
        near = longer or difflib.get_close_matches(_plain(kind), names, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(names[one] for one in near)}?" if near else ""
        raise ArgumentError(
            f"--gpus {text} is not understood.{hint} Give a number of GPUs and their memory, such as 2x48GiB, or one "
            f"of these names: {', '.join(KNOWN_GPUS)}."
        )
    total = KNOWN_GPUS[name] * MIB
    return Gpu(name, total, int(total * CUDA_SHARE))


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name.lower())
