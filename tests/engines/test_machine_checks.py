"""What is checked on a machine before an engine starts. The facts are given, so no GPU is needed."""

import dataclasses
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import zmq
from support.engines import vllm_engine

from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.engines.vllm import machine_checks
from lmms_eval_mai.engines.vllm.machine_checks import Machine, PlacedEngine, check, check_readable, problems
from lmms_eval_mai.engines.vllm.nvml import VisibleGpu
from lmms_eval_mai.errors import ArgumentError, EngineUnavailable

GIB = 1 << 30
GOOD = Machine(8 * GIB, True, True, True, "/tmp", "ext4")
GPU = VisibleGpu("NVIDIA H100", 80 * GIB, 79 * GIB)


def pair(small: tuple[int, ...] = (0,), large: tuple[int, ...] = (0,), **arguments: Any) -> list[PlacedEngine]:
    """Return two engines. An engine on several GPUs is divided over them."""
    return [
        PlacedEngine(EngineConfig("small", "vllm", "tiny/2B", arguments), small),
        PlacedEngine(EngineConfig("large", "vllm", "tiny/8B", arguments), large),
    ]


def found(engines: list[PlacedEngine], gpus: list[VisibleGpu], **facts: Any) -> list[tuple[machine_checks.Level, str]]:
    return [(one.level, one.text) for one in problems(engines, gpus, dataclasses.replace(GOOD, **facts))]


def gpu(**facts: Any) -> VisibleGpu:
    return dataclasses.replace(GPU, **facts)


def test_good_machine_has_no_problem() -> None:
    assert found(pair(), [GPU]) == []
    assert found(pair((0,), (1, 2)), [GPU] * 3) == []
    assert found(pair((), ()), []) == []


@pytest.mark.parametrize(
    ("engines", "gpus", "facts", "level", "words"),
    [
        (pair(), [gpu(compute_mode="prohibited")], {}, "refusal", "PROHIBITED.*nvidia-smi -i 0 -c DEFAULT"),
        (pair(), [gpu(compute_mode="exclusive")], {"mps": False}, "refusal", "EXCLUSIVE_PROCESS.*mps.*small_devices=0"),
        (pair((0,), (1, 2)), [GPU, gpu(mig=True), GPU], {}, "refusal", "GPU 1 is a MIG slice.*tensor_parallel_size=1"),
        (pair((0,), (1, 2)), [GPU] * 3, {"shared_memory_bytes": 64 << 20}, "refusal", "64 MiB.*--shm-size.*--ipc=host"),
        (pair((0,), (1, 2)), [GPU] * 3, {"shared_memory_bytes": 512 << 20}, "warning", "512 MiB, and the 2 workers"),
        (pair((), (), tensor_parallel_size=2), [], {"shared_memory_bytes": 0}, "refusal", "0 MiB, and the 2 workers"),
        (
            pair(enable_sleep_mode=True)[:1],  # each of two engines that take turns is checked alone
            [gpu(compute_mode="exclusive")],
            {"mps": False},
            "refusal",
            "EXCLUSIVE_PROCESS",
        ),
        (pair(), [GPU], {"has_compiler": False}, "warning", "no C compiler.*apt install gcc"),
        (pair(), [GPU], {"has_python_header": False}, "warning", r"Python\.h.*apt install python3\.\d+-dev"),
        (pair((), ()), [], {"socket_folder": "/" + "t" * 70}, "refusal", "108 bytes.*VLLM_RPC_BASE_PATH=/tmp"),
        (pair(), [GPU], {"socket_file_system": "nfs4"}, "warning", r"network file system \(nfs4\).*VLLM_RPC_BASE"),
        (pair(), [GPU], {"mps": False}, "hint", "share GPU 0.*nvidia-cuda-mps-control -d"),
    ],
)
def test_problem_is_found_and_the_text_has_the_remedy(
    engines: list[PlacedEngine], gpus: list[VisibleGpu], facts: dict[str, Any], level: str, words: str
) -> None:
    levels = {found_level: text for found_level, text in found(engines, gpus, **facts)}
    assert re.search(words, levels[level]), levels


@pytest.mark.parametrize(
    ("engines", "gpus", "facts"),
    [
        (pair((0,), (1,)), [gpu(compute_mode="exclusive")] * 2, {"mps": False}),  # one process on each
        (pair(), [gpu(compute_mode="exclusive")], {}),  # MPS runs
        (pair(), [GPU, gpu(compute_mode="prohibited")], {}),  # not used
        (pair((0,), (1,)), [gpu(mig=True)] * 2, {}),
        (pair(), [GPU], {"shared_memory_bytes": 0}),  # a single worker needs none
        (pair((0, 1), (2, 3), data_parallel_size=2), [GPU] * 4, {"shared_memory_bytes": 0}),
        (pair((), ()), [], {"has_compiler": False, "has_python_header": False}),  # nothing is compiled on a CPU
        (pair(), [GPU], {"socket_folder": "/" + "t" * 69}),
        (pair(enable_sleep_mode=True), [GPU], {"mps": False}),  # they never run at the same time
    ],
)
def test_what_works_is_no_problem(engines: list[PlacedEngine], gpus: list[VisibleGpu], facts: dict[str, Any]) -> None:
    assert found(engines, gpus, **facts) == []


def test_engines_that_would_fail_are_refused() -> None:
    with pytest.raises(EngineUnavailable, match="PROHIBITED"):
        check(pair(), [gpu(compute_mode="prohibited")], GOOD)


def test_engines_with_missing_weight_files_are_refused_unless_their_weights_are_random(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    broken = EngineConfig("large", "vllm", str(tmp_path), {})
    with pytest.raises(ArgumentError, match=r"model-1\.safetensors"):
        check([PlacedEngine(broken, (0,))], [GPU], GOOD)
    check([PlacedEngine(dataclasses.replace(broken, arguments={"load_format": "dummy"}), (0,))], [GPU], GOOD)


def test_gpu_whose_memory_cannot_be_read_needs_context_and_memory_from_the_user() -> None:
    unreadable = [gpu(name="A100 MIG 1g.10gb", total_bytes=0, free_bytes=0)]
    given = EngineConfig("small", "vllm", "2B", {"max_model_len": 8192, "gpu_memory_utilization": 0.4})
    partly = EngineConfig("large", "vllm", "8B", {"gpu_memory_utilization": 0.5})
    with pytest.raises(ArgumentError, match=r"A100 MIG 1g.10gb.* Set large_gpu_memory_utilization and max_model_len"):
        check_readable([given, partly], unreadable)
    check_readable([given], unreadable)
    check_readable([given, partly], [GPU])


def test_file_system_of_a_path_is_that_of_the_longest_mount() -> None:
    mounts = "/dev/a / ext4 rw 0 0\nserver:/x /home nfs4 rw 0 0\ntmpfs /home/my\\040user/tmp tmpfs rw 0 0\n"
    for path, kind in (("/tmp", "ext4"), ("/home/a", "nfs4"), ("/homes", "ext4"), ("/home/my user/tmp/x", "tmpfs")):
        assert machine_checks._file_system(path, mounts) == kind


def test_facts_of_this_machine_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    here = Machine.here()
    assert here.socket_folder == str(tmp_path) and here.socket_file_system != "unknown"
    assert here.shared_memory_bytes > 0 and not here.mps


def test_limit_of_a_socket_path_is_that_of_zeromq() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        folder = f"{base}/{'t' * (machine_checks.SOCKET_PATH_LIMIT - machine_checks.SOCKET_NAME - len(base) - 1)}"
        os.mkdir(folder)
        name = "u" * (machine_checks.SOCKET_NAME - 1)
        with zmq.Context() as context, context.socket(zmq.PULL) as socket:
            socket.bind(f"ipc://{folder}/{name}")
            with pytest.raises(zmq.ZMQError, match="longer than 107"):
                socket.bind(f"ipc://{folder}/{name}u")


def test_engine_on_a_machine_where_it_would_fail_is_refused_before_it_starts(
    tiny_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "/" + "t" * 90)
    with pytest.raises(EngineUnavailable, match=r"too long for vLLM's sockets.*VLLM_RPC_BASE_PATH=/tmp"):
        vllm_engine(tiny_pair).validate()


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
