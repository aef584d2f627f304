"""What is checked on a machine before an engine starts."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lmms_eval_mai.contract import EngineConfig, Side
from lmms_eval_mai.engines.vllm import machine_checks
from lmms_eval_mai.engines.vllm.configuration import configure
from lmms_eval_mai.engines.vllm.machine_checks import problems
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.run.config import parse

GIB = 1 << 30


def pair(**arguments: Any) -> list[EngineConfig]:
    return [EngineConfig("small", "vllm", "tiny/2B", arguments), EngineConfig("large", "vllm", "tiny/8B", arguments)]


@pytest.mark.parametrize(
    ("arguments", "shared_memory", "refusal", "words"),
    [
        ({"tensor_parallel_size": 2}, 64 << 20, True, "64 MiB, and the 2 workers"),
        ({"tensor_parallel_size": 2}, 512 << 20, False, "--shm-size=8g"),
        ({"pipeline_parallel_size": 2.0}, 0, True, "the 2 workers"),
    ],
)
def test_too_little_shared_memory_for_several_workers_is_a_problem(
    arguments: dict[str, Any], shared_memory: int, refusal: bool, words: str
) -> None:
    (problem,) = problems(pair(**arguments), {}, shared_memory)
    assert problem.refusal is refusal and words in problem.text


@pytest.mark.parametrize(("arguments", "shared_memory"), [({}, 0), ({"tensor_parallel_size": 2}, 2 * GIB)])
def test_one_worker_or_enough_shared_memory_is_no_problem(arguments: dict[str, Any], shared_memory: int) -> None:
    gpus: dict[Side, tuple[int, ...]] = {"small": (0,), "large": (0,)}  # this machine has no GPU whose mode is read
    assert list(problems(pair(**arguments), gpus, shared_memory)) == []


def test_compute_mode_of_a_gpu_that_cannot_be_read_is_the_default() -> None:
    assert machine_checks.compute_mode(0) in ("DEFAULT", "EXCLUSIVE_PROCESS", "PROHIBITED")


def test_engines_with_missing_weight_files_are_refused_unless_their_weights_are_random(
    tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    broken = shutil.copytree(tiny_pair[0], tmp_path / "broken")
    (broken / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    config = parse({"mode": "small", "small": str(broken), "small_engine": "vllm"}).small
    with pytest.raises(ArgumentError, match=r"model-1\.safetensors"):
        configure(config, None)
    dummy = {"mode": "small", "small": str(broken), "small_engine": "vllm", "load_format": "dummy"}
    configure(parse(dummy).small, None)


def test_mps_is_detected_by_the_pipe_of_its_daemon_and_the_running_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    daemon = shutil.copy(shutil.which("sleep") or "", tmp_path / "nvidia-cuda-mps-control")
    with subprocess.Popen([daemon, "60"]) as process:
        assert not machine_checks.mps_runs()  # it runs, but serves another folder
        os.mkfifo(tmp_path / "control")
        assert machine_checks.mps_runs()
        process.kill()
    assert not machine_checks.mps_runs()  # a killed daemon leaves its pipe
