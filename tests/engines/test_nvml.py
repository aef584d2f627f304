"""The GPUs that NVML reports."""

from collections.abc import Callable, Iterator

import pytest
import vllm.third_party.pynvml as pynvml
from support.nvml import GIB, Device, install

from lmms_eval_mai.engines.vllm.nvml import VisibleGpu, visible_gpus

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Make NVML report these devices."""
    visible_gpus.cache_clear()

    def make(*devices: Device, visible: str | None = None) -> None:
        install(devices, monkeypatch)
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    yield make
    visible_gpus.cache_clear()


A100 = Device("NVIDIA A100", "GPU-aa11", 80, 79)
L4 = Device("NVIDIA L4", "GPU-bb22", 22.5, 10)
H100 = Device("NVIDIA H100", "GPU-cc33", 79.6, 79)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [A100, L4, H100]),
        ("2,0", [H100, A100]),
        (" 1 ", [L4]),
        ("", []),
        ("-1", []),
        ("0,7,1", [A100]),  # CUDA ignores all that follows a number that does not exist
        ("GPU-cc33,GPU-aa11", [H100, A100]),
        ("GPU-bb", [L4]),
        ("MIG-none", []),
    ],
)
def test_gpus_are_those_of_cuda_visible_devices_in_its_order(
    machine: Machine, visible: str | None, expected: list[Device]
) -> None:
    machine(A100, L4, H100, visible=visible)
    assert visible_gpus() == tuple(
        VisibleGpu(one.name, int(one.gib * GIB), int(one.free_gib * GIB)) for one in expected
    )


def test_mig_slice_has_its_own_memory_and_the_mode_of_its_gpu(machine: Machine) -> None:
    small, large = (Device("A100 MIG", f"MIG-{gib}", gib, gib - 1, is_slice=True) for gib in (10, 20))
    divided = Device("NVIDIA A100", "GPU-dd44", 40, 39, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, [None, small, large])
    machine(divided, visible="MIG-20,MIG-10")
    first, second = visible_gpus()
    assert (first.total_bytes, first.free_bytes, second.total_bytes) == (20 * GIB, 19 * GIB, 10 * GIB)
    assert first.mig and first.compute_mode == "exclusive"


@pytest.mark.parametrize("visible", [None, "0", "GPU-dd44"])
def test_divided_gpu_means_its_first_slice(machine: Machine, visible: str | None) -> None:
    slice_ = Device("A100 MIG", "MIG-10", 10, 9, is_slice=True)
    machine(Device("NVIDIA A100", "GPU-dd44", 40, 39, slices=[None, slice_]), visible=visible)
    assert [gpu.total_bytes for gpu in visible_gpus()] == [10 * GIB]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (pynvml.NVML_COMPUTEMODE_DEFAULT, "default"),
        (pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, "exclusive"),
        (pynvml.NVML_COMPUTEMODE_PROHIBITED, "prohibited"),
    ],
)
def test_compute_mode_is_read(machine: Machine, mode: int, expected: str) -> None:
    machine(Device("NVIDIA L4", "GPU-bb22", 22.5, mode=mode))
    assert [gpu.compute_mode for gpu in visible_gpus()] == [expected]


def test_gpu_whose_memory_cannot_be_read_is_listed_as_unreadable(machine: Machine) -> None:
    machine(Device("NVIDIA GB10", "GPU-ee55", 0))
    (gpu,) = visible_gpus()
    assert not gpu.readable


def test_gpus_are_read_once_so_that_a_restarted_engine_gets_the_same_plan(machine: Machine) -> None:
    machine(A100)
    before = visible_gpus()
    machine(L4)
    assert visible_gpus() == before


def test_machine_without_nvidia_library_has_no_gpus() -> None:
    visible_gpus.cache_clear()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert visible_gpus() == ()
    else:
        pytest.skip("this machine has NVIDIA's library")
    finally:
        visible_gpus.cache_clear()
