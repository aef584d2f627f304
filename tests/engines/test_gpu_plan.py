"""The plan of real engine configurations: checkpoints, arguments of the user, launchers and several GPUs."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmms_eval_mai.contract import SIDES, EngineConfig
from lmms_eval_mai.engines.vllm.arguments import planned_identity, set_planned
from lmms_eval_mai.engines.vllm.gpu_plan import OnGpus, on_gpus
from lmms_eval_mai.engines.vllm.model_sizes import checkpoint_size, size_of
from lmms_eval_mai.engines.vllm.placement import Launcher, environment, given_devices, gpu_of_rank
from lmms_eval_mai.engines.vllm.planning.gpus import Gpu, parse_gpus
from lmms_eval_mai.engines.vllm.planning.known_models import known_models
from lmms_eval_mai.engines.vllm.planning.models import ModelSize, model_size
from lmms_eval_mai.errors import ArgumentError

ALONE = Launcher()
QWEN = "Qwen/Qwen3-VL-{}-Instruct"


@pytest.fixture
def checkpoints(tmp_path: Path) -> dict[str, str]:
    """Folders with the configuration of Qwen3-VL models, by size. The weights take no space on the disk."""
    from transformers import Qwen3VLConfig

    found = {}
    for name in ("2B", "8B"):
        size = known_models()[QWEN.format(name)]
        text = {"num_hidden_layers": size.layers, "num_attention_heads": 16 if name == "2B" else 32,
                "num_key_value_heads": 8, "head_dim": 128, "hidden_size": size.hidden_size, "vocab_size": 151_936,
                "max_position_embeddings": size.max_context}  # fmt: skip
        vision = {"hidden_size": size.vision.hidden_size, "intermediate_size": size.vision.intermediate_size,
                  "deepstack_visual_indexes": [1, 2, 3]}  # fmt: skip
        folder = tmp_path / name
        Qwen3VLConfig(text_config=text, vision_config=vision).save_pretrained(folder)
        with (folder / "model.safetensors").open("wb") as weights:
            weights.truncate(size.weight_bytes)
        found[name] = str(folder)
    return found


def engines(models: tuple[str, str], **arguments: Any) -> list[EngineConfig]:
    """Return the two engines. `small_x`, `large_x` and `x` are given to one or to both."""
    found = []
    for side, model in zip(SIDES, models, strict=True):
        other = "large_" if side == "small" else "small_"
        own = {key.removeprefix(f"{side}_"): value for key, value in arguments.items() if not key.startswith(other)}
        found.append(EngineConfig(side, "vllm", model, own))
    return found


def placed(gpus: str, launcher: Launcher = ALONE, turns: bool = False, **arguments: Any) -> dict[Any, OnGpus]:
    models = (QWEN.format(arguments.pop("small", "2B")), QWEN.format(arguments.pop("large", "8B")))
    return on_gpus(engines(models, **arguments), parse_gpus(gpus), launcher, turns)


def places(gpus: str, **arguments: Any) -> list[tuple[int, ...]]:
    return [one.place.gpus for one in placed(gpus, **arguments).values()]


def test_sizes_of_a_checkpoint_on_the_disk_equal_those_of_the_known_model(checkpoints: dict[str, str]) -> None:
    gpus = parse_gpus("H100")
    from_disk = on_gpus(engines((checkpoints["2B"], checkpoints["8B"])), gpus, ALONE, False)
    from_name = placed("H100")
    for side in SIDES:
        one, other = from_disk[side].plan, from_name[side].plan
        assert one is not None and other is not None
        assert one.request.size == other.request.size and one.share == other.share


def test_two_models_on_one_gpu_share_it() -> None:
    found = placed("H100")
    assert [one.place.gpus for one in found.values()] == [(0,), (0,)]
    assert 0.89 < sum(one.share for one in found.values()) <= 0.9001


def test_gpu_whose_memory_cannot_be_read_has_no_plan() -> None:
    configs = engines((QWEN.format("2B"), QWEN.format("8B")), gpu_memory_utilization=0.4, max_model_len=8192)
    found = on_gpus(configs, [Gpu("A100 MIG 1g.10gb", 0, 0)], ALONE, False)
    assert [(one.place.gpus, one.plan) for one in found.values()] == [((0,), None), ((0,), None)]


def test_two_models_take_one_gpu_each_if_there_are_several() -> None:
    assert places("2xL40S") == [(0,), (1,)]
    assert places("8xH100") == [(0,), (1,)]
    assert all(one.share == pytest.approx(0.9) for one in placed("2xL40S").values())


def test_model_that_is_too_large_for_one_gpu_is_divided() -> None:
    assert places("4x16GiB") == [(0,), (1, 2)]


def test_models_that_do_not_fit_apart_share_all_gpus() -> None:
    assert places("2x18GiB") == [(0, 1), (0, 1)]


def test_given_devices_are_kept_and_the_other_engine_takes_a_free_gpu() -> None:
    assert places("2xL40S", small_devices=1) == [(1,), (0,)]
    assert places("2xL40S", large_devices=0) == [(1,), (0,)]
    assert places("2xH100", devices=1) == [(1,), (1,)]
    assert places("4xL40S", large_devices=[2, 3]) == [(0,), (2, 3)]


def test_given_tensor_parallelism_takes_so_many_gpus() -> None:
    assert places("4xL40S", large_tensor_parallel_size=2) == [(0,), (1, 2)]
    assert places("2xH100", tensor_parallel_size=2) == [(0, 1), (0, 1)]
    found = placed("4xL40S", large_devices=[0, 1, 2, 3], large_data_parallel_size=2)
    assert found["large"].place.tensor_parallel == 2
    with pytest.raises(ArgumentError, match="need more GPUs than the 2 of this machine"):
        placed("2xH100", tensor_parallel_size=4)


def test_models_that_take_turns_are_on_the_same_gpu() -> None:
    assert places("2x40GiB", turns=True) == [(0,), (0,)]


def test_memory_of_a_sleeping_model_is_kept_free_only_on_a_gpu_that_both_models_use() -> None:
    apart = {"small_devices": 0, "large_devices": 1}
    shares = [one.share for one in placed("2x24GiB", turns=True, **apart).values()]
    assert shares == [one.share for one in placed("2x24GiB", **apart).values()]
    assert placed("24GiB", turns=True)["large"].share < shares[1]


def test_pair_of_a_rank_runs_on_the_gpu_of_the_same_number() -> None:
    assert places("3xH100", launcher=Launcher(ranks=3, rank=2)) == [(2,), (2,)]
    assert gpu_of_rank(3, ALONE) is None
    assert gpu_of_rank(0, Launcher(ranks=3, rank=2)) is None  # on a CPU


def test_rank_that_sees_one_gpu_of_its_own_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    launcher = Launcher.from_environment()
    assert places("H100", launcher=launcher) == [(0,), (0,)]
    assert environment((0,), 1, "cuda")["CUDA_VISIBLE_DEVICES"] == "5"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # torchrun: all four ranks see this GPU
    with pytest.raises(ArgumentError, match="4 ranks run on this machine, but this rank can use only 1 GPU"):
        places("H100", launcher=Launcher.from_environment())


def test_gpus_of_an_engine_have_the_numbers_of_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    found = environment((1, 0), 1, "cuda")
    assert (found["CUDA_VISIBLE_DEVICES"], found["CUDA_DEVICE_ORDER"]) == ("1,3", "PCI_BUS_ID")


def test_gpus_of_amd_have_the_same_numbers_in_both_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "3,1")
    for cuda in ("3,1", ""):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", cuda)
        found = environment((1,), 1, "cuda")
        assert found["CUDA_VISIBLE_DEVICES"] == found["HIP_VISIBLE_DEVICES"] == "1"


def test_ranks_that_would_share_a_gpu_are_refused() -> None:
    last_of_three = Launcher(ranks=3, rank=2)
    with pytest.raises(ArgumentError, match="small_devices=0 would give the same GPUs to all 3 ranks"):
        given_devices("small", 0, 8, last_of_three)
    with pytest.raises(ArgumentError, match="3 ranks run on this machine, but this rank can use only 2 GPUs"):
        gpu_of_rank(2, last_of_three)


def test_devices_are_gpu_numbers_of_this_machine() -> None:
    assert given_devices("small", [0, 1], 2, ALONE) == given_devices("small", "0+1", 2, ALONE) == (0, 1)
    with pytest.raises(
        ArgumentError, match="small_devices=2 names a GPU that does not exist: this process can use 2 GPUs"
    ):
        given_devices("small", 2, 2, ALONE)


def test_pair_that_does_not_fit_is_refused_with_what_would_fit() -> None:
    with pytest.raises(ArgumentError, match=r"8B-Instruct \(16\.3 GiB\) do not fit GPU 0 \(RTX4090\).*sleep=true"):
        placed("RTX4090")
    with pytest.raises(ArgumentError) as raised:
        placed("16GiB", quantization="fp8")
    assert "quantization=fp8" not in str(raised.value)


@pytest.mark.parametrize("share", [0.85, 0.9, 1])
def test_share_that_leaves_too_little_for_the_other_engine_is_refused(share: float) -> None:
    with pytest.raises(ArgumentError, match="leave out large_gpu_memory_utilization"):
        placed("H100", large_gpu_memory_utilization=share)


def test_model_of_unknown_size_gets_half_of_a_shared_gpu(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    configs = engines((str(tmp_path), QWEN.format("2B")))
    found = on_gpus(configs, parse_gpus("H100"), ALONE, False)
    assert [one.share for one in found.values()] == pytest.approx([0.45, 0.45])
    assert [one.plan for one in found.values()] == [None, None]


def test_types_of_numbers_change_the_memory(checkpoints: dict[str, str]) -> None:
    def size(**arguments: Any) -> ModelSize:
        plan = placed("2xH200", **arguments)["large"].plan
        assert plan is not None
        return plan.request.size

    usual = size()
    assert size(dtype="float32").weight_bytes == 2 * usual.weight_bytes
    assert size(dtype="float32").kv_bytes_per_token() == 2 * usual.kv_bytes_per_token()
    assert size(kv_cache_dtype="fp8").kv_bytes_per_token() * 2 == usual.kv_bytes_per_token()
    assert size(quantization="fp8").weight_bytes < 0.7 * usual.weight_bytes


def test_plan_sets_only_the_arguments_that_the_user_left_out(checkpoints: dict[str, str]) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    given = {"max_num_seqs": 7, "mm_processor_kwargs": {"min_pixels": 4096}}
    small, large = engines(
        (checkpoints["2B"], checkpoints["8B"]), **{f"large_{key}": one for key, one in given.items()}
    )
    found = on_gpus([small, large], parse_gpus("34GiB"), ALONE, False)["large"]
    arguments = AsyncEngineArgs(model=large.model, **large.arguments)
    set_planned(arguments, large, found)
    assert (arguments.max_model_len, arguments.max_num_seqs, arguments.tensor_parallel_size) == (16_384, 7, 1)
    assert arguments.gpu_memory_utilization == found.share and arguments.max_num_batched_tokens == 8_192
    assert arguments.mm_processor_kwargs == {"min_pixels": 4096, "max_pixels": 4_194_304}


def test_a_run_is_another_run_only_if_the_plan_can_change_an_answer() -> None:
    def identity(gpus: str, **arguments: Any) -> dict[str, Any]:
        (_, large) = engines((QWEN.format("2B"), QWEN.format("8B")), **arguments)
        plan = placed(gpus, **arguments)["large"].plan
        assert plan is not None
        return planned_identity(large, plan)

    assert identity("H100") == identity("H200") == identity("2x48GiB") == {}
    assert identity("RTX5090") == {"max_model_len": 8_192, "max_pixels": 3_145_728}
    assert identity("2x18GiB") == {"max_model_len": 8_192, "tensor_parallel_size": 2, "max_pixels": 3_145_728}
    assert identity("H100", max_model_len=16_384) == {"max_pixels": 4_194_304}
    assert identity("H100", max_model_len=16_384, mm_processor_kwargs={"max_pixels": 1 << 20}) == {}


def test_plan_never_raises_the_limit_of_pixels_of_a_checkpoint() -> None:
    """The demo pair's processor scales images to at most 36,864 pixels."""
    from lmms_eval_mai.run.config import parse

    config = parse({"pair": "demo"})
    for one in on_gpus([config.small, config.large], parse_gpus("L4"), ALONE, False).values():
        assert one.plan is not None and one.plan.max_pixels is None
        assert one.plan.request.size.vision.max_image_tokens == 36_864 // 1024


def test_limit_of_pixels_is_planned_only_for_models_that_know_it(checkpoints: dict[str, str]) -> None:
    """GLM-4.1V has the fields of Qwen3-VL, but its image processor ignores `max_pixels`."""
    path = Path(checkpoints["2B"]) / "config.json"
    fields = json.loads(path.read_text())
    limited, unlimited = (
        model_size({**fields, "model_type": name}, 1 << 32) for name in (fields["model_type"], "glm4v")
    )
    assert limited is not None and unlimited is not None
    assert limited.vision.pixels_per_token == 1024 and unlimited.vision.pixels_per_token is None


def test_weights_in_32_bits_on_the_disk_count_as_loaded_and_quantized_ones_as_they_are(
    checkpoints: dict[str, str],
) -> None:
    path = Path(checkpoints["2B"]) / "config.json"
    fields = json.loads(path.read_text())
    (small, _) = engines((checkpoints["2B"], checkpoints["8B"]))
    for changes, share in (({}, 1), ({"dtype": "float32"}, 0.5), ({"quantization_config": {"quant_method": "fp8"}}, 1)):
        path.write_text(json.dumps({**fields, "dtype": "bfloat16", **changes}))
        checkpoint_size.cache_clear()
        size = size_of(small)
        assert size is not None
        assert size.weight_bytes == known_models()[QWEN.format("2B")].weight_bytes * share
        assert size.quantized == ("quantization_config" in changes)
