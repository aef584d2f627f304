"""Checks that the machine's memory holds the weights of sleeping engines (`sleep=true`)."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.engines.checkpoints import weight_bytes
from lmms_eval_mai.engines.vllm.model_sizes import size_of
from lmms_eval_mai.engines.vllm.planning.memory import GIB, PINNED_BYTES_PER_WEIGHT_BYTE
from lmms_eval_mai.errors import ArgumentError

SLEEP_ARGUMENTS: Mapping[str, bool] = {"enable_sleep_mode": True, "sleep_mode_offload_cudagraph": True}
"""The arguments of an engine that can sleep. With the second one, its CUDA graphs leave the GPU too."""


def check_host_memory(configs: Sequence[EngineConfig], available_bytes: int, ranks: int) -> None:
    """Refuse to let these engines sleep if the machine's memory cannot hold their weights. Raises `ArgumentError`.

    While two engines swap, the weights of both are in the machine's memory. `ranks`: processes on this machine that
    each run these engines. If the size of a model is unknown, nothing is checked.
    """
    sizes = [_weight_bytes(config) for config in configs]
    known = [size for size in sizes if size is not None]
    needed = ranks * PINNED_BYTES_PER_WEIGHT_BYTE * sum(known)
    if len(known) < len(sizes) or needed <= available_bytes:
        return
    models = " and ".join(f"{config.model} ({size / GIB:.1f} GiB)" for config, size in zip(configs, known, strict=True))
    of_all_ranks = f" for the {ranks} ranks on this machine" if ranks > 1 else ""
    raise ArgumentError(
        f"sleep=true keeps the weights of a sleeping model in the machine's memory. {models} need up to "
        f"{needed / GIB:.1f} GiB{of_all_ranks}, and {available_bytes / GIB:.1f} GiB are available. Free some memory, "
        "use smaller models, or leave out sleep if the machine has several GPUs."
    )


def available_bytes(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """Return the memory that this process can still use: that of the machine, or of its container (`docker --memory`)
    or job (Slurm's `--mem`) if that is less. `root`, `membership`: Linux's files about control groups."""
    available: int = psutil.virtual_memory().available
    limits = [_left_in_group(folder, names) for folder, names in _control_groups(root, membership)]
    return min([available, *(left for left in limits if left is not None)])


_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_VERSION_2 = ("memory.max", "memory.current")


def _control_groups(root: Path, membership: Path) -> Iterator[tuple[Path, tuple[str, str]]]:
    """Yield the folders of the control groups that may limit the memory of this process, with the names of their files:
    its own group and all groups above it. A container may not see its own folder, but only `root`."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = root, _VERSION_2
        elif "memory" in controllers.split(","):
            top, names = root / "memory", _VERSION_1
        else:
            continue
        group = top / path.lstrip("/")
        yield from ((folder, names) for folder in (group, *group.parents) if folder.is_relative_to(top))


def _left_in_group(folder: Path, names: tuple[str, str]) -> int | None:
    """Return the memory that a control group has left. Its cache of files counts as free: Linux drops it if memory is
    needed, and after a download of weights it fills a container. None: there is no limit."""
    try:
        limit, used, counts = ((folder / name).read_text() for name in (*names, "memory.stat"))
    except OSError:
        return None
    if limit.strip() == "max":
        return None
    count = dict(line.split() for line in counts.splitlines())
    files = sum(int(count.get(f"total_{name}", count.get(name, 0))) for name in ("active_file", "inactive_file"))
    return max(0, int(limit) - int(used) + files)


def _weight_bytes(config: EngineConfig) -> int | None:
    """Return the bytes of the weights as the engine holds them. None: unknown."""
    if (size := size_of(config)) is not None:
        return size.weight_bytes
    if "quantization" in config.arguments:
        return None
    return weight_bytes(config.model, config.arguments.get("revision"))
