"""The configuration of engines on GPUs, as far as it works without CUDA: from the GPUs of NVML to vLLM's arguments."""

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.nvml import Device, install

from lmms_eval_mai.cli import gpu_report
from lmms_eval_mai.contract import Side
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.vllm import arguments as vllm_arguments
from lmms_eval_mai.engines.vllm import configuration, machine_checks
from lmms_eval_mai.engines.vllm.gpu_plan import OnGpus, pair_plan
from lmms_eval_mai.engines.vllm.host_memory import SLEEP_ARGUMENTS
from lmms_eval_mai.engines.vllm.nvml import visible_gpus
from lmms_eval_mai.engines.vllm.placement import Launcher
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.run.config import Config, parse

MODELS = {f"{side}": f"Qwen/Qwen3-VL-{size}-Instruct" for side, size in (("small", "2B"), ("large", "8B"))}
L4, H100 = Device("NVIDIA L4", "GPU-aa11", 24, 24), Device("NVIDIA H100", "GPU-bb22", 79.6, 79)
MACHINE = machine_checks.Machine(1 << 34, True, True, True, "/tmp", "ext4")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine_checks.Machine, "here", lambda: MACHINE)
    visible_gpus.cache_clear()
    yield
    visible_gpus.cache_clear()


def config(**arguments: Any) -> Config:
    return parse({**MODELS, "engine": "vllm", "load_format": "dummy", **arguments})


def of_run(config: Config, side: Side) -> tuple[OnGpus, SimpleNamespace]:
    """Return where a run starts this engine, and the arguments that the plan sets."""
    own = getattr(config, side)
    configs = [own, config.other(own)]
    if config.sleep:  # as `build` does, which also checks the memory of this machine (test_sleep.py)
        configs = [dataclasses.replace(one, arguments={**one.arguments, **SLEEP_ARGUMENTS}) for one in configs]
    engine: Any = build(*configs)
    found, _ = configuration._on_gpus(engine._config, engine._other, "cuda")
    assert found is not None
    planned = SimpleNamespace(mm_processor_kwargs=None)
    vllm_arguments.set_planned(planned, engine._config, found)
    return found, planned


@pytest.mark.parametrize(
    ("devices", "rank", "arguments", "gpus"),
    [
        ([H100], None, {}, [(0,), (0,)]),
        ([L4, H100], None, {}, [(0,), (1,)]),
        ([H100, H100], 1, {}, [(1,), (1,)]),
        ([L4], None, {"sleep": True}, [(0,), (0,)]),
        ([L4, L4], None, {"sleep": True, "small_devices": 0, "large_devices": 1}, [(0,), (1,)]),
    ],
)
def test_run_has_the_plan_that_doctor_shows(
    devices: list[Device],
    rank: int | None,
    arguments: dict[str, Any],
    gpus: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(tuple(devices), monkeypatch)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(len(devices)))
    given = config(**arguments)
    shown = pair_plan(given.engines(), visible_gpus(), Launcher.from_environment(), given.sleep)
    assert shown is not None
    run = [of_run(given, "small"), of_run(given, "large")]
    assert [found.place.gpus for found, _ in run] == gpus
    for (found, planned), engine in zip(run, shown.engines, strict=True):
        assert found.plan == engine
        assert planned.gpu_memory_utilization == engine.share
        assert (planned.max_model_len, planned.max_num_seqs) == (engine.limits.context, engine.limits.max_num_seqs)
        pixels = None if engine.max_pixels is None else {"max_pixels": engine.max_pixels}
        assert planned.mm_processor_kwargs == pixels


def test_models_that_take_turns_prepare_images_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they could not share a renderer."""
    install((L4,), monkeypatch)
    small, large = (of_run(config(sleep=True), side)[1] for side in ("small", "large"))
    assert small.max_model_len == large.max_model_len < 32_768
    assert small.mm_processor_kwargs == large.mm_processor_kwargs
    assert small.mm_processor_kwargs is not None


def test_doctor_shows_that_turns_on_different_gpus_have_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    install((L4, L4), monkeypatch)
    text = " ".join(
        gpu_report.describe(config(sleep=True, small_devices=0, large_devices=1), visible_gpus(), Launcher())
    )
    assert "faster without sleep=true" in " ".join(text.split()) and "on the GPU." not in text


@pytest.mark.parametrize("visible", ["", "-1"])
def test_vllm_for_gpus_is_refused_if_no_gpu_is_visible(visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install((H100,), monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("vllm.platforms.current_platform", SimpleNamespace(device_count=lambda: 0))
    with pytest.raises(ArgumentError, match="this process can see none: check CUDA_VISIBLE_DEVICES"):
        of_run(config(), "small")
