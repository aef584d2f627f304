"""What a plan recommends where the models do not fit, and the names of GPUs."""

import dataclasses
from typing import Any

import pytest
from support.plans import MODELS, pair

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.engines.vllm.planning.advice import Case, alternatives, refusal
from lmms_eval_mai.engines.vllm.planning.gpus import KNOWN_GPUS, parse_gpus
from lmms_eval_mai.engines.vllm.planning.known_models import known_models
from lmms_eval_mai.engines.vllm.planning.memory import GIB
from lmms_eval_mai.engines.vllm.planning.plan import (
    CONTEXTS,
    Request,
    Shortfall,
    plan,
)
from lmms_eval_mai.errors import ArgumentError


def test_pair_that_cannot_fit_is_refused_with_the_shortfall_and_what_would_fit() -> None:
    gpus = parse_gpus("2x24GiB")
    requests = pair("4B", "8B")
    found = plan(gpus, requests)
    assert isinstance(found, Shortfall) and found.context == CONTEXTS[-1]
    text = refusal(Case(gpus, requests, others=MODELS), found).text
    assert "4B (8.3 GiB) and 8B (16.3 GiB) do not fit GPU 0 (24 GiB)" in text
    assert f"{found.missing_bytes / GIB:.1f} GiB are missing" in text
    assert (
        "small_devices=0,large_devices=1" in text
        and "sleep=true" in text
        and "smaller models (small=2B,large=4B)" in text
    )


def test_sleep_is_recommended_only_if_it_fits() -> None:
    for gpu, fits in (("24GiB", True), ("16GiB", False)):
        found = list(alternatives(Case(parse_gpus(gpu), pair("2B", "8B"))))
        assert any(one.arguments == "sleep=true" for one in found) == fits, (gpu, found)


@pytest.mark.parametrize(
    ("gpu", "models", "expected"),
    [
        ("24GiB", ("2B", "8B"), ["sleep=true", "quantization=fp8", "large=4B"]),
        ("24GiB", ("4B", "8B"), ["sleep=true", "quantization=fp8", "small=2B,large=4B"]),
        ("18GiB", ("2B", "8B"), ["sleep=true,quantization=fp8"]),
        ("16GiB", ("2B", "8B"), ["large=4B,sleep=true"]),
        ("8GiB", ("2B", "8B"), []),
    ],
)
def test_single_changes_are_recommended_first_and_two_together_if_none_is_enough(
    gpu: str, models: tuple[str, str], expected: list[str]
) -> None:
    found = list(alternatives(Case(parse_gpus(gpu), pair(*models), others=MODELS)))
    assert [one.arguments for one in found] == expected
    assert all(one.arguments in one.text for one in found)


def test_smaller_model_of_the_same_family_is_recommended_if_the_family_is_known() -> None:
    names = ("OpenGVLab/InternVL3_5-1B-HF", "OpenGVLab/InternVL3_5-8B-HF")
    internvl = [Request(side, name, known_models()[name], (0,), 1) for side, name in zip(SIDES, names, strict=True)]
    found = list(alternatives(Case(parse_gpus("16GiB"), internvl, others=known_models())))
    assert [one.arguments for one in found if "large" in one.arguments] == ["large=OpenGVLab/InternVL3_5-2B-HF"]
    unknown = [dataclasses.replace(one, model=f"my/{one.side}") for one in internvl]
    found = list(alternatives(Case(parse_gpus("24GiB"), unknown, others=known_models())))
    qwen = "small=Qwen/Qwen3-VL-2B-Instruct,large=Qwen/Qwen3-VL-4B-Instruct"
    assert [one.arguments for one in found if "large" in one.arguments] == [qwen]


@pytest.mark.parametrize(
    ("limits", "remedy"),
    [
        ({"share": 0.9}, "leave out gpu_memory_utilization (the context is then 32,768 tokens)"),
        ({"share": 0.9, "context": 8_192}, "leave out gpu_memory_utilization (the context is then 8,192 tokens)"),
        ({"kv_cache_bytes": 60 * GIB}, "leave out kv_cache_memory_bytes (the context is then 32,768 tokens)"),
        ({"context": 262_144}, "leave out max_model_len (the context is then 32,768 tokens)"),
        ({"max_num_batched_tokens": 1 << 18}, "leave out max_num_batched_tokens (the context is then 32,768 tokens)"),
    ],
)
def test_limits_of_the_user_that_do_not_fit_are_named_without_those_that_do(
    limits: dict[str, Any], remedy: str
) -> None:
    gpus, requests = parse_gpus("H100"), pair("2B", "8B", **limits)
    found = plan(gpus, requests)
    assert isinstance(found, Shortfall)
    assert f"in one of these ways: {remedy}; or" in refusal(Case(gpus, requests), found).text + "; or"


def test_limits_are_left_out_together_with_another_change_if_neither_is_enough() -> None:
    case = Case(parse_gpus("24GiB"), pair("2B", "8B", share=0.95), others=MODELS)
    found = list(alternatives(case))
    assert [one.arguments for one in found] == ["sleep=true", "quantization=fp8", "large=4B"]
    assert found[0].text.startswith("leave out gpu_memory_utilization, and let the models take turns on the GPU (sleep")


def test_engine_with_too_small_a_share_is_named_with_its_own_memory() -> None:
    gpus = parse_gpus("H100")
    small, large = pair("2B", "8B")
    requests = [dataclasses.replace(small, share=0.05), large]
    found = plan(gpus, requests)
    assert isinstance(found, Shortfall)
    text = refusal(Case(gpus, requests), found).text
    assert (
        text.startswith("2B (4.0 GiB) does not fit GPU 0 (H100)")
        and "3.9 GiB are available. This is what its gpu_memory" in text
    )
    assert "leave out small_gpu_memory_utilization" in text


def test_advice_for_models_that_take_turns_keeps_the_turns() -> None:
    gpus, requests = parse_gpus("24GiB"), pair("2B", "8B", context=32_768)
    found = list(alternatives(Case(gpus, requests, turns=True, others=MODELS)))
    assert [one.arguments for one in found] == ["", "quantization=fp8", "large=4B"]
    assert "leave out max_model_len" in found[0].text


NOT_GPUS = [
    *("", "0xL4", "65x24GiB", "L5", "24TiB", "2xx24", "0.5GiB", "-1x24GiB"),
    *("H100 40GB", "NVIDIA H100 NVL", "L4+", "24GiB,48GiB", "60xL4+5xL4"),
]


@pytest.mark.parametrize("text", NOT_GPUS)
def test_text_that_names_no_gpus_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="--gpus"):
        parse_gpus(text)


@pytest.mark.parametrize(
    ("text", "count", "gib"),
    [
        ("24GiB", 1, 24),
        ("1x24GiB", 1, 24),
        ("23034MiB", 1, 22.5),
        ("2*24", 2, 24),
        ("2\u00d748 GB", 2, 48),
        ("A6000", 1, 48),
        ("4090", 1, 24),
        ("2xNVIDIA A100-SXM4-80GB", 2, 80),
        ("NVIDIA H100 80GB HBM3", 1, 79.6),
        ("NVIDIA GeForce RTX 4090", 1, 24),
        ("Tesla T4", 1, 15),
        ("L40S 48GB", 1, 45),
        ("8 x 80 GiB", 8, 80),
        ("2xL4", 2, 22.5),
        ("rtx 4090", 1, 24),
        ("h100", 1, 79.6),
    ],
)
def test_text_that_names_gpus(text: str, count: int, gib: float) -> None:
    found = parse_gpus(text)
    assert len(found) == count and found[0].total_bytes / GIB == pytest.approx(gib, abs=0.05)


def test_different_gpus_are_joined_with_a_plus() -> None:
    assert [gpu.name for gpu in parse_gpus("L4 + 2x48GiB")] == ["L4", "48 GiB", "48 GiB"]


def test_refusal_names_the_memory_that_other_programs_use() -> None:
    (empty,) = parse_gpus("H100")
    used = dataclasses.replace(empty, free_bytes=empty.free_bytes - 60 * GIB)
    found = plan([used], pair("2B", "8B"))
    assert isinstance(found, Shortfall)
    assert "Other programs use 60.0 GiB of this GPU" in refusal(Case([used], pair("2B", "8B")), found).text


def test_unclear_name_suggests_the_gpus_that_start_with_it() -> None:
    for text in ("A100", "A100x2"):
        with pytest.raises(ArgumentError, match="Did you mean A100-40GB or A100-80GB"):
            parse_gpus(text)
    with pytest.raises(ArgumentError, match=r"24GB24 is not understood\. Give a number"):
        parse_gpus("24GB24")


def test_all_named_gpus_are_understood() -> None:
    assert all(parse_gpus(f"2x{name}")[1].name == name for name in KNOWN_GPUS)
