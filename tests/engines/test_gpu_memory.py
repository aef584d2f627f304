"""Where two models run, and how they share the memory of one GPU."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmms_eval_mai.contract import SIDES, EngineConfig, Side
from lmms_eval_mai.engines.vllm.environment import Launcher
from lmms_eval_mai.engines.vllm.gpu_memory import (
    AUTOMATIC,
    GIB,
    KNOWN_MODELS,
    LEAST_CONTEXT,
    MAX_CONTEXT,
    RESERVE_BYTES,
    USABLE,
    Share,
    memory_of,
    places,
    shares,
)
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.run import presets

QWEN = "Qwen/Qwen3-VL-{}-Instruct"


def pair(small: str = "2B", large: str = "8B", **arguments: Any) -> list[EngineConfig]:
    """Return two engines. An argument `small_...` or `large_...` is for one of them."""
    found = []
    for side, size in zip(SIDES, (small, large), strict=True):
        other = "large_" if side == "small" else "small_"
        own = {name.removeprefix(f"{side}_"): value for name, value in arguments.items() if not name.startswith(other)}
        found.append(EngineConfig(side, "vllm", QWEN.format(size), own))
    return found


def shared(gib: float, *sizes: str, gpus: int = 1, **arguments: Any) -> dict[Side, Share]:
    return shares(pair(*sizes, **arguments), [int(gib * GIB)] * gpus, Launcher())


@pytest.mark.parametrize("gib", [16, 22.5, 40, 79.6, 141])
@pytest.mark.parametrize("sizes", [("2B", "4B"), ("2B", "8B"), ("4B", "8B")])
def test_each_model_gets_its_weights_a_reserve_and_half_of_the_rest(gib: float, sizes: tuple[str, str]) -> None:
    found = shared(gib, *sizes)
    total, models = int(gib * GIB), [KNOWN_MODELS[QWEN.format(size)] for size in sizes]
    assert found["small"].gpus == found["large"].gpus == (0,)
    assert sum(share.utilization or 0 for share in found.values()) == pytest.approx(USABLE, abs=2e-4)
    rest = USABLE * total - sum(model.weight_bytes + RESERVE_BYTES for model in models)
    for side, model in zip(SIDES, models, strict=True):
        share = found[side]
        if rest >= 0:
            assert share.kv_cache_bytes == pytest.approx(rest / 2, abs=2e-4 * total)
        tokens = share.kv_cache_tokens or 0
        assert tokens == max(0, share.kv_cache_bytes or 0) // model.kv_bytes_per_token
        assert (share.verdict == "fits") is (share.context == MAX_CONTEXT) is (tokens >= MAX_CONTEXT)
        assert (share.verdict == "does not fit") is (tokens < LEAST_CONTEXT)
        assert share.context in (MAX_CONTEXT, AUTOMATIC)


@pytest.mark.parametrize(
    ("gib", "sizes", "verdict"),
    [
        (15, ("2B", "4B"), "does not fit"),
        (22.5, ("2B", "4B"), "tight"),
        (22.5, ("2B", "8B"), "does not fit"),
        (31.8, ("2B", "8B"), "tight"),
        (40, ("2B", "8B"), "fits"),
        (40, ("4B", "8B"), "tight"),
        (79.6, ("4B", "8B"), "fits"),
        (141, ("4B", "8B"), "fits"),
    ],
)
def test_verdict_of_common_gpus(gib: float, sizes: tuple[str, str], verdict: str) -> None:
    assert shared(gib, *sizes)["large"].verdict == verdict


def test_with_two_gpus_each_model_has_its_own_and_vllms_own_share() -> None:
    found = shared(24, gpus=2)
    assert [found[side].gpus for side in SIDES] == [(0,), (1,)]
    assert [found[side].utilization for side in SIDES] == [None, None]
    assert found["small"].verdict == "fits" and found["small"].context == MAX_CONTEXT


def test_model_that_is_divided_over_two_gpus_leaves_more_of_the_shared_one_to_the_other() -> None:
    found = shared(22.5, "2B", "8B", gpus=2, large_tensor_parallel_size=2)
    assert (found["small"].gpus, found["large"].gpus) == ((0,), (0, 1))
    assert found["large"].weight_bytes == KNOWN_MODELS[QWEN.format("8B")].weight_bytes // 2
    assert sum(share.utilization or 0 for share in found.values()) == pytest.approx(USABLE, abs=2e-4)
    assert {share.verdict for share in found.values()} == {"tight"}


def test_fp8_takes_less_memory_and_makes_room_on_a_smaller_gpu() -> None:
    assert shared(24)["large"].verdict == "does not fit"
    assert shared(24, quantization="fp8")["large"].verdict == "tight"
    small, _ = pair(kv_cache_dtype="fp8")
    plain = KNOWN_MODELS[small.model]
    assert (memory_of(small) or plain).kv_bytes_per_token * 2 == plain.kv_bytes_per_token
    doubled = memory_of(pair(dtype="float32")[0])
    assert doubled is not None and doubled.weight_bytes == 2 * plain.weight_bytes


def test_users_own_arguments_come_first() -> None:
    found = shared(80, small_gpu_memory_utilization=0.3, max_model_len=8192)
    assert found["small"].utilization == 0.3 and found["large"].utilization == pytest.approx(USABLE - 0.3)
    assert found["large"].context is None and found["large"].verdict == "fits"
    assert shared(32, max_model_len=32768)["large"].verdict == "does not fit"  # vLLM refuses it, and says why
    assert shared(32, max_model_len=-1.0)["large"].verdict == "tight"
    assert shared(80, kv_cache_memory_bytes=1 << 30)["large"].kv_cache_bytes == 1 << 30


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"small_gpu_memory_utilization": 0.95},
            "small_gpu_memory_utilization=0.95 leaves no GPU memory to the large engine",
        ),
        ({"large_tensor_parallel_size": 4}, "The large engine needs 4 GPUs, and this process can use 1"),
        ({"small_devices": 3}, "small_devices=3 names a GPU that does not exist: this process can use 1 GPU."),
        ({"small_devices": "first"}, r"small_devices=first is not a list of GPU numbers: write small_devices=\[0,1\]"),
        ({"devices": 0, "large_tensor_parallel_size": 2}, "The large engine needs 2 GPUs, but large_devices names 1"),
    ],
)
def test_arguments_that_no_gpu_can_have_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        shared(80, **arguments)


@pytest.mark.parametrize(
    ("gpus", "arguments", "expected"),
    [
        (1, {}, [(0,), (0,)]),
        (8, {}, [(0,), (1,)]),
        (4, {"large_tensor_parallel_size": 2}, [(0,), (1, 2)]),
        (2, {"tensor_parallel_size": 2}, [(0, 1), (0, 1)]),
        (4, {"large_data_parallel_size": 3}, [(0,), (1, 2, 3)]),
        (2, {"large_devices": 0}, [(1,), (0,)]),
        (2, {"large_device_ids": [0]}, [(1,), (0,)]),
        (2, {"small_devices": "0;1", "large_devices": "0+1"}, [(0, 1), (0, 1)]),
    ],
)
def test_each_engine_has_gpus_of_its_own_if_there_are_enough(
    gpus: int, arguments: dict[str, Any], expected: list[tuple[int, ...]]
) -> None:
    found = places(pair(**arguments), gpus, Launcher())
    assert [found[side] for side in SIDES] == expected


def test_rank_of_a_launcher_uses_the_gpu_with_its_number_for_both_models() -> None:
    assert places(pair(), 4, Launcher(ranks=4, rank=2)) == {"small": (2,), "large": (2,)}
    assert places(pair(), 1, Launcher(ranks=4, rank=2, one_gpu_each=True)) == {"small": (0,), "large": (0,)}
    assert places(pair(), 2, Launcher(ranks=1, rank=0)) == {"small": (0,), "large": (1,)}  # the only rank
    with pytest.raises(ArgumentError, match="4 ranks run on this machine, but this rank can use only 2 GPUs"):
        places(pair(), 2, Launcher(ranks=4, rank=2))
    with pytest.raises(ArgumentError, match="would give the same GPUs to all 4 ranks"):
        places(pair(devices=0), 4, Launcher(ranks=4, rank=2))
    with pytest.raises(ArgumentError, match="The large engine needs 2 GPUs, but each rank has 1"):
        places(pair(large_tensor_parallel_size=2), 4, Launcher(ranks=4, rank=2))


def test_memory_of_a_checkpoint_is_read_from_its_files(tmp_path: Path) -> None:
    text = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16}
    config = {"dtype": "float32", "text_config": {**text, "max_position_embeddings": 4096}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    found = memory_of(EngineConfig("small", "vllm", str(tmp_path)))
    assert found is not None
    assert (found.weight_bytes, found.kv_bytes_per_token, found.max_context) == (500, 2 * 4 * 2 * 16 * 2, 4096)


def test_models_of_unknown_size_share_a_gpu_equally(tmp_path: Path) -> None:
    unknown = [EngineConfig(side, "vllm", str(tmp_path)) for side in SIDES]
    found = shares(unknown, [80 * GIB], Launcher())
    assert [(found[side].utilization, found[side].verdict) for side in SIDES] == [(USABLE / 2, "unknown")] * 2


def test_models_of_all_named_pairs_are_known() -> None:
    models = {model for name in presets.names() for model in presets.models(name)}
    on_the_hub = {model for model in models if not model.startswith("./")}
    assert on_the_hub == KNOWN_MODELS.keys()
