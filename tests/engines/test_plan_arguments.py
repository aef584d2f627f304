"""The user's arguments that decide the plan of the GPU memory: their ranges, and the division of an engine."""

from typing import Any

import pytest

from lmms_eval_mai.contract import SIDES, EngineConfig
from lmms_eval_mai.engines.vllm.gpu_plan import OnGpus, on_gpus
from lmms_eval_mai.engines.vllm.placement import Launcher
from lmms_eval_mai.engines.vllm.planning.gpus import parse_gpus
from lmms_eval_mai.engines.vllm.planning.layout import Wish, layouts
from lmms_eval_mai.errors import ArgumentError

ALONE = Launcher()


def placed(gpus: str, launcher: Launcher = ALONE, turns: bool = False, **arguments: Any) -> dict[Any, OnGpus]:
    """Return where the 2B and the 8B model of Qwen3-VL run. `small_x`, `large_x` and `x` are given to one or both."""
    found = []
    for side, size in zip(SIDES, ("2B", "8B"), strict=True):
        other = "large_" if side == "small" else "small_"
        own = {key.removeprefix(f"{side}_"): value for key, value in arguments.items() if not key.startswith(other)}
        found.append(EngineConfig(side, "vllm", f"Qwen/Qwen3-VL-{size}-Instruct", own))
    return on_gpus(found, parse_gpus(gpus), launcher, turns)


@pytest.mark.parametrize(
    ("arguments", "ranks", "words"),
    [
        (
            {"tensor_parallel_size": 2},
            2,
            r"The small engine needs 2 GPUs \(tensor_parallel_size=2\), but each rank has 1",
        ),
        ({"small_devices": 0, "small_tensor_parallel_size": 2}, 1, "but small_devices names 1"),
        ({"large_devices": [0, 1], "large_tensor_parallel_size": 2, "large_data_parallel_size": 2}, 1, "needs 4 GPUs"),
        ({"large_devices": [0, 0]}, 1, r"large_devices=\[0, 0\] names a GPU twice"),
        ({"large_tensor_parallel_size": 3}, 1, "tensor_parallel_size=3 does not divide the 32 attention heads"),
        ({"large_devices": [0, 1, 2]}, 1, "large_devices with 3 GPUs per copy does not divide the 32 attention heads"),
    ],
)
def test_division_that_the_gpus_or_the_heads_do_not_allow_is_refused(
    arguments: dict[str, Any], ranks: int, words: str
) -> None:
    launcher = Launcher(ranks, 1) if ranks > 1 else ALONE
    with pytest.raises(ArgumentError, match=words):
        placed("4xH100", launcher=launcher, **arguments)


def test_planned_division_divides_the_attention_heads() -> None:
    wish = Wish(heads=14)
    assert [one[0].tensor_parallel for one in layouts([wish], 8, turns=False)] == [1, 2]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_model_len", value) for value in ("abc", 0, -2, True)),
        *(("max_num_seqs", value) for value in (0, -1, 1.5)),
        *((f"{name}_parallel_size", value) for name in ("tensor", "data", "pipeline") for value in (0, -1)),
        *(("gpu_memory_utilization", value) for value in (90, 0, -0.1, True, "abc", float("nan"))),
        ("max_num_batched_tokens", 0),
        ("kv_cache_memory_bytes", -1),
    ],
)
def test_argument_that_is_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"^{name}={value} is invalid: expected a "):
        placed("4xH100", **{name: value})


@pytest.mark.parametrize("limit", [{"max_pixels": -5}, {"max_pixels": 0}, {"size": {"longest_edge": -5}}])
def test_limit_of_pixels_that_is_out_of_range_is_named(limit: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=r"^(max_pixels|longest_edge)=(-5|0) is invalid"):
        placed("H100", mm_processor_kwargs=limit)


@pytest.mark.parametrize("automatic", [-1, -1.0, "auto"])
def test_context_that_vllm_chooses_is_planned_as_if_it_was_not_given(automatic: Any) -> None:
    plans = [placed("RTX5090", **given)["large"].plan for given in ({}, {"max_model_len": automatic})]
    assert plans[0] is not None and plans[0] == plans[1]


def test_numbers_may_be_texts_or_floats() -> None:
    plan = placed("H100", max_model_len="16384", max_num_seqs=64.0)["large"].plan
    assert plan is not None and (plan.limits.context, plan.limits.max_num_seqs) == (16_384, 64)


def test_max_num_seqs_is_at_most_the_given_number_of_tokens_in_one_step() -> None:
    plan = placed("H100", max_num_batched_tokens=256)["large"].plan
    assert plan is not None and (plan.limits.max_num_seqs, plan.limits.max_num_batched_tokens) == (256, 256)


def test_pipeline_stages_hold_a_part_of_the_weights_and_of_the_kv_cache_each() -> None:
    whole, half = (
        placed("2x80GiB", devices=[0, 1], **{f"{name}_parallel_size": 2})["large"].plan for name in ("data", "pipeline")
    )
    assert whole is not None and half is not None
    assert whole.terms.weights // 2 < half.terms.weights < 0.6 * whole.terms.weights
    assert half.terms.one_sequence * 2 == whole.terms.one_sequence
    assert placed("3x16GiB", large_pipeline_parallel_size=2)["large"].place.gpus == (1, 2)


@pytest.mark.parametrize("unknown", [{"cpu_offload_gb": 4}, {"quantization": "bitsandbytes"}])
def test_arguments_whose_memory_is_unknown_have_no_plan(unknown: dict[str, Any]) -> None:
    assert [one.plan for one in placed("H100", **unknown).values()] == [None, None]
    assert placed("H100", cpu_offload_gb=0)["large"].plan is not None


def test_gpu_of_its_own_is_not_advised_for_a_model_that_fits_only_in_stages() -> None:
    with pytest.raises(ArgumentError) as raised:
        placed("2x16GiB", large_pipeline_parallel_size=2)
    assert "sleep=true" in str(raised.value) and "small_devices" not in str(raised.value)


def test_gpu_of_its_own_is_not_advised_to_a_rank_of_a_launcher() -> None:
    with pytest.raises(ArgumentError) as raised:
        placed("2x24GiB", Launcher(ranks=2, rank=1))
    assert "sleep=true" in str(raised.value) and "small_devices" not in str(raised.value)
    with pytest.raises(ArgumentError, match="small_devices=0,large_devices=1"):
        placed("2x24GiB", devices=0)


def test_turns_on_all_gpus_are_advised_if_the_models_fit_only_there() -> None:
    with pytest.raises(ArgumentError, match=r"take turns on the GPU \(sleep=true\)"):
        placed("2x16GiB")
    assert placed("2x16GiB", turns=True)["large"].place.gpus == (0, 1)


def test_models_that_take_turns_may_have_different_numbers_of_gpus() -> None:
    found = placed("2xH100", turns=True, small_devices=0, large_devices=[0, 1])
    assert [one.place.gpus for one in found.values()] == [(0,), (0, 1)]
    assert found["large"].place.tensor_parallel == 2


def test_model_of_unknown_size_gets_what_the_given_share_of_the_other_leaves() -> None:
    shares = [one.share for one in placed("H100", cpu_offload_gb=4, large_gpu_memory_utilization=0.7).values()]
    assert shares == pytest.approx([0.2, 0.7])
    with pytest.raises(ArgumentError, match="There is no GPU memory for small=Qwen"):
        placed("H100", cpu_offload_gb=4, large_gpu_memory_utilization=0.95)


def test_models_of_unknown_size_that_take_turns_leave_space_for_the_sleeper() -> None:
    for one in placed("L4", turns=True, cpu_offload_gb=4).values():
        assert one.share * parse_gpus("L4")[0].usable_bytes <= parse_gpus("L4")[0].free_bytes - (3 << 30)


def test_names_of_8_bit_weights_have_the_same_plan() -> None:
    plans = [placed("24GiB", quantization=name)["large"].plan for name in ("fp8", "fp8_per_tensor")]
    assert plans[0] is not None and plans[0] == plans[1]
