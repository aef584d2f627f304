"""NVIDIA's library on a machine with given GPUs. There is no GPU in the tests, so the functions of vLLM's binding are
replaced, each by one with the same parameters."""

import inspect
from ctypes import c_uint
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TypeVar

import pytest
import vllm.third_party.pynvml as pynvml

GIB = 1 << 30
T = TypeVar("T")


@dataclass
class Device:
    """One GPU, or one slice of a GPU, as the library knows it."""

    name: str
    uuid: str
    gib: float
    free_gib: float = 0
    mode: int = pynvml.NVML_COMPUTEMODE_DEFAULT
    slices: list["Device | None"] = field(default_factory=list)
    is_slice: bool = False


class Library:
    """NVIDIA's library on a machine with these devices. Its methods replace the functions of the binding."""

    def __init__(self, devices: tuple[Device, ...]) -> None:
        self.devices = devices

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        return self.devices[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Device:
        known = [*self.devices, *(one for device in self.devices for one in device.slices)]
        return supported(next((one for one in known if one is not None and one.uuid == uuid), None))

    def nvmlDeviceGetUUID(self, handle: Device) -> str:
        return handle.uuid

    def nvmlDeviceGetName(self, handle: Device) -> str:
        return handle.name

    def nvmlDeviceGetMemoryInfo(self, handle: Device) -> SimpleNamespace:
        return SimpleNamespace(total=int(supported(handle.gib or None) * GIB), free=int(handle.free_gib * GIB))

    def nvmlDeviceGetComputeMode(self, handle: Device) -> int:
        return supported(None if handle.is_slice else handle.mode)

    def nvmlDeviceGetMigMode(self, device: Device) -> list[int]:
        return supported([1, 1] if device.slices else None)

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Device) -> int:
        return len(device.slices)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Device, index: int) -> Device:
        return supported(device.slices[index])

    def nvmlDeviceIsMigDeviceHandle(self, device: Device) -> c_uint:
        return c_uint(device.is_slice)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, migDevice: Device) -> Device:
        return next(device for device in self.devices if migDevice in device.slices)


def supported(found: T | None) -> T:
    if found is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return found


def install(devices: tuple[Device, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make NVML report these devices."""
    library = Library(devices)
    for name in (name for name in vars(Library) if name.startswith("nvml")):
        binding = inspect.unwrap(getattr(pynvml, name))
        assert list(inspect.signature(getattr(library, name)).parameters) == [
            one.name for one in inspect.signature(binding).parameters.values() if one.default is one.empty
        ]
        monkeypatch.setattr(pynvml, name, getattr(library, name))
