"""What is refused or chosen before two engines take turns on one GPU (`sleep=true`)."""

from pathlib import Path
from typing import Any

import pytest

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.engines.build import argument_names, build
from lmms_eval_mai.engines.vllm.host_memory import SLEEP_ARGUMENTS, available_bytes, check_host_memory
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.run.config import parse


def checkpoint(folder: Path, gib: int) -> str:
    """Return a checkpoint with so many GiB of weights; the file takes no space on the disk."""
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as weights:
        weights.truncate(gib << 30)
    return str(folder)


def test_sleep_is_refused_if_the_machine_has_too_little_memory_for_the_weights_of_both_models(tmp_path: Path) -> None:
    models = {"small": checkpoint(tmp_path / "s", 4), "large": checkpoint(tmp_path / "l", 16)}
    engines = parse({"sleep": True, **models}).engines()
    check_host_memory(engines, available_bytes=25 << 30, ranks=1)
    smaller_in_memory = parse({"sleep": True, **models, "large_quantization": "fp8"}).engines()
    check_host_memory(smaller_in_memory, available_bytes=0, ranks=1)
    for ranks, available, words in ((1, 24, "25.0 GiB, and 24.0 GiB are"), (2, 25, "50.0 GiB for the 2 ranks on")):
        with pytest.raises(ArgumentError, match=rf"^sleep=true keeps .*\(4\.0 GiB\) and .*\(16\.0 GiB\) .* {words}"):
            check_host_memory(engines, available << 30, ranks)


def test_models_that_no_machine_can_hold_are_refused_before_an_engine_starts(tmp_path: Path) -> None:
    models = {side: checkpoint(tmp_path / side, 4 << 10) for side in SIDES}
    config = parse({"sleep": True, **models})
    with pytest.raises(ArgumentError, match="GiB are available"):
        build(config.small, config.large, sleep=True)


def test_arguments_of_a_sleeping_engine_exist_in_vllm() -> None:
    names = argument_names("vllm")
    assert names is not None and set(SLEEP_ARGUMENTS) <= names
    engine: Any = build(parse({"pair": "demo"}).small, sleep=True)
    assert engine._config.arguments.items() >= SLEEP_ARGUMENTS.items()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"pair": "demo", "large": "http://a:1/v1"}, "mode=cascade uses vllm and openai"),
        ({"pair": "demo", "mode": "small"}, "mode=small uses one engine"),
        ({"pair": "demo"}, "sleep=true needs a GPU"),
    ],
)
def test_sleep_without_two_vllm_engines_on_a_gpu_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        config = parse({"sleep": True, **arguments})
        build(config.small, config.other(config.small), config.sleep).validate()


MEMORY_FILES = {
    "0::{}": ("memory.max", "memory.current"),
    "7:cpu,memory:{}": ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
}
"""The line of a control group in /proc/self/cgroup, for both versions of control groups, and the files of its limit."""


def control_group(folder: Path, line: str, path: str, limit: str) -> None:
    """Write the files of a control group that uses 3,000 bytes, 1,000 of them for its cache of files."""
    for name, value in zip(MEMORY_FILES[line], (limit, "3000"), strict=True):
        parent, _, file = name.rpartition("/")
        group = folder / parent / path.lstrip("/")
        group.mkdir(parents=True, exist_ok=True)
        (group / file).write_text(f"{value}\n")
        (group / "memory.stat").write_text("anon 2000\nactive_file 400\ninactive_file 600\n")


@pytest.mark.parametrize("line", MEMORY_FILES)
@pytest.mark.parametrize(
    ("own", "limited"),
    [
        ("/", "/"),  # docker
        ("/slurm/job_1/step_0", "/slurm/job_1"),  # Slurm limits the job
        ("/docker/on-the-host", "/"),  # a container that sees the name of its group on the host
    ],
)
def test_memory_of_a_container_or_job_is_its_limit_less_what_it_uses_except_its_cache_of_files(
    line: str, own: str, limited: str, tmp_path: Path
) -> None:
    groups = tmp_path / "self"
    groups.write_text(f"9:cpuset:/other\n{line.format(own)}\n")
    unlimited = available_bytes(tmp_path, groups)  # there is no such folder
    assert unlimited > 1 << 20
    control_group(tmp_path, line, limited, "max" if line.startswith("0") else str((1 << 63) - 4096))
    assert available_bytes(tmp_path, groups) == pytest.approx(unlimited, rel=0.2)
    control_group(tmp_path, line, limited, "5000")
    assert available_bytes(tmp_path, groups) == 3000


def test_machine_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert available_bytes(tmp_path, tmp_path / "missing") > 1 << 20


def test_weights_of_sleeping_models_count_as_loaded() -> None:
    """Weights in 32 bits are loaded with 16. The models of the named pairs are known without their files."""
    models = {"small": "Qwen/Qwen3-VL-2B-Instruct", "large": "Qwen/Qwen3-VL-8B-Instruct", "engine": "vllm"}
    check_host_memory(parse({"sleep": True, **models}).engines(), available_bytes=26 << 30, ranks=1)
    with pytest.raises(ArgumentError, match=r"need up to 50\.\d GiB"):
        check_host_memory(parse({"sleep": True, **models, "dtype": "float32"}).engines(), 26 << 30, ranks=1)
    check_host_memory(parse({"sleep": True, **models, "quantization": "fp8"}).engines(), 16 << 30, ranks=1)
