"""What is checked on a machine before an engine starts."""

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lmms_eval_mai.engines.vllm import machine_checks
from lmms_eval_mai.engines.vllm.configuration import configure
from lmms_eval_mai.errors import ArgumentError, EngineUnavailable
from lmms_eval_mai.run.config import parse


def test_too_little_shared_memory_for_several_workers_is_refused_or_a_warning(warnings: list[str]) -> None:
    machine_checks.check_shared_memory(1, 0)
    machine_checks.check_shared_memory(2, 2 << 30)
    machine_checks.check_shared_memory(1)
    assert warnings == []
    with pytest.raises(EngineUnavailable, match=r"64 MiB, and the 2 workers [\s\S]*--shm-size=8g"):
        machine_checks.check_shared_memory(2, 64 << 20)
    machine_checks.check_shared_memory(4, 512 << 20)
    (text,) = warnings
    assert "512 MiB, and the 4 workers" in text


def test_gpus_whose_compute_mode_cannot_be_read_are_accepted() -> None:
    machine_checks.check_gpus({"small": (0,), "large": (0,)})  # here is no GPU, or one in the mode DEFAULT
    assert machine_checks.compute_mode(0) == "DEFAULT"


def test_engines_with_missing_weight_files_are_refused_unless_their_weights_are_random(
    tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    broken = shutil.copytree(tiny_pair[0], tmp_path / "broken")
    (broken / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    config = parse({"mode": "small", "small": str(broken), "small_engine": "vllm"}).small
    with pytest.raises(ArgumentError, match=r"model-1\.safetensors"):
        configure(config, None)
    configure(dataclasses.replace(config, arguments={"load_format": "dummy"}), None)


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
