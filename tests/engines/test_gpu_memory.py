"""Where two models run, and how they share the memory of one GPU."""

from pathlib import Path
from typing import Any

import pytest

from lmms_eval_mai.contract import SIDES, EngineConfig, Side
from lmms_eval_mai.engines.vllm.configuration import start_errors
from lmms_eval_mai.engines.vllm.gpu_memory import BESIDES_WEIGHTS, GIB, USABLE, GpuShare, shares
from lmms_eval_mai.errors import EngineStartError


@pytest.fixture
def models(tmp_path: Path) -> tuple[str, str]:
    """Two checkpoints with weights of 4 and 16 GiB, in files that take no space."""
    for side, gib in zip(SIDES, (4, 16), strict=True):
        (tmp_path / side).mkdir()
        with (tmp_path / side / "model.safetensors").open("wb") as file:
            file.truncate(gib * GIB)
    return str(tmp_path / "small"), str(tmp_path / "large")


def shared(models: tuple[str, str], gpus: int = 1, rank: int | None = None, **arguments: Any) -> dict[Side, GpuShare]:
    """Return the shares. An argument `small_...` or `large_...` is for one engine."""
    pair = []
    for side, model in zip(SIDES, models, strict=True):
        other = "large_" if side == "small" else "small_"
        given = {
            name.removeprefix(f"{side}_"): value for name, value in arguments.items() if not name.startswith(other)
        }
        pair.append(EngineConfig(side, "vllm", model, given))
    return shares(pair, gpus, rank)


def test_on_one_gpu_the_shares_grow_with_the_weights_and_are_vllms_default_together(models: tuple[str, str]) -> None:
    found = shared(models)
    small, large = (found[side].utilization or 0 for side in SIDES)
    assert found["small"].gpus == found["large"].gpus == (0,)
    assert small + large == pytest.approx(USABLE, abs=2e-4)
    assert large / small == pytest.approx((16 * GIB + BESIDES_WEIGHTS) / (4 * GIB + BESIDES_WEIGHTS), rel=1e-3)
    unknown = shared((models[0], "org/not-on-this-machine"))
    assert unknown["small"].utilization == unknown["large"].utilization == USABLE / 2


@pytest.mark.parametrize(
    ("small", "large", "expected"),
    [(0.3, None, (0.3, USABLE - 0.3)), (0.5, 0.5, (0.5, 0.5))],
)
def test_share_that_the_user_gives_is_kept_and_leaves_the_rest_to_the_other_model(
    models: tuple[str, str], small: float | None, large: float | None, expected: tuple[float, float]
) -> None:
    given = {"small_gpu_memory_utilization": small, "large_gpu_memory_utilization": large}
    found = shared(models, **{name: value for name, value in given.items() if value is not None})
    assert [found[side].utilization for side in SIDES] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("gpus", "arguments", "small", "large"),
    [
        (2, {}, (0,), (1,)),
        (4, {"large_tensor_parallel_size": 2}, (0,), (1, 2)),
        (2, {"large_tensor_parallel_size": 2}, (0,), (0, 1)),
        (4, {"small_devices": 3}, (3,), (0,)),
        (4, {"small_devices": "2", "large_devices": "0;1"}, (2,), (0, 1)),
        (4, {"large_devices": [0, 1]}, (2,), (0, 1)),
        (4, {"large_device_ids": [1]}, (0,), (1,)),
        (4, {"rank": 2}, (2,), (2,)),
        (1, {"rank": 3}, (0,), (0,)),  # srun lets each rank see its own GPU only
    ],
)
def test_each_model_has_gpus_of_its_own_if_there_are_enough(
    models: tuple[str, str], gpus: int, arguments: dict[str, Any], small: tuple[int, ...], large: tuple[int, ...]
) -> None:
    found = shared(models, gpus, **arguments)
    assert (found["small"].gpus, found["large"].gpus) == (small, large)
    is_shared = bool(set(small) & set(large))
    assert [found[side].utilization is not None for side in SIDES] == [is_shared, is_shared]


@pytest.mark.parametrize(
    ("error", "shares_gpu", "has_advice"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory.", True, True),
        ("CUDA out of memory.", False, False),
        ("No module named 'kernels'", True, False),
    ],
)
def test_a_start_that_fails_for_want_of_memory_on_a_shared_gpu_tells_what_may_fit(
    error: str, shares_gpu: bool, has_advice: bool
) -> None:
    with pytest.raises(EngineStartError) as raised, start_errors(EngineConfig("large", "vllm", "m"), shares_gpu):
        raise RuntimeError(error)
    assert ("qwen3vl-2b-4b" in str(raised.value)) is has_advice and str(raised.value).endswith(error)
