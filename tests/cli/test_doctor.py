"""`lmms-eval-mai doctor`: its checks, its report, and the shares of the GPU memory."""

from typing import Any

import pytest
from huggingface_hub import constants
from support.own_command import run_command

from lmms_eval_mai.cli import doctor
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.run.config import parse

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variable that the command sets, so that its value does not stay."""
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")


@pytest.mark.slow
def test_a_pasted_command_is_checked_and_each_problem_is_named(capsys: Any) -> None:
    code, text, _ = run_command(
        capsys, "doctor", "torchrun", "--nproc_per_node", "2", "-m", "lmms_eval", "--model", "mai_cascade",
        "--tasks", "shapes_s,shapes_x,shapes_*", "--limit", "-1", "--log_samples",
        "--pair", "demo", "--model_args", f"large={NOWHERE}/v1",
    )  # fmt: skip
    lines = text.strip().splitlines()
    assert code == 1 and lines[-1] == "2 problems." and len(lines) < 25
    problems = [line for line in lines if "PROBLEM" in line]
    assert [line.split()[1] for line in problems] == ["tasks", "large"]
    assert "shapes_x" in problems[0] and NOWHERE in problems[1]
    assert any(line.split()[:2] == ["ok", "small"] for line in lines)


@pytest.mark.parametrize(
    ("model_args", "refused", "word"),
    [
        ("engine=transformers", [], "on cpu"),
        ("engine=transformers,transfer=sparse,sparse_layer=7", ["large"], "sparse_layer=7"),
        (f"small_engine=transformers,large={NOWHERE}/v1,transfer=sparse", ["large"], "sparse"),
        ("small=/nowhere/at/all,method=small", ["small"], "/nowhere/at/all"),
        ("max_model_len=abc", ["small", "large"], "max_model_len=abc"),
    ],
)
def test_engines_are_checked_as_a_run_would_build_them(
    capsys: Any, model_args: str, refused: list[str], word: str
) -> None:
    code, text, _ = run_command(capsys, "doctor", "--pair", "demo", "--model_args", model_args)
    assert [line.split()[1] for line in text.splitlines() if "PROBLEM" in line] == refused
    assert code == bool(refused) and word in text


@pytest.mark.parametrize(("name", "value"), [("HF_HUB_OFFLINE", True), ("ENDPOINT", NOWHERE)])
def test_model_that_is_not_on_this_machine_is_a_problem_without_the_hub(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, name, value)
    doctor.check_model(parse({"pair": "demo"}).small)
    with pytest.raises(ArgumentError, match="Qwen/Qwen3-VL-2B-Instruct"):
        doctor.check_model(parse({}).small)


def test_shares_of_other_gpus_are_shown_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run_command(capsys, "doctor", "--gpus", "48,48,24", "--model_args", "pair=demo,large_devices=2")
    headings, small, large, _ = (" ".join(line.split()) for line in text.splitlines())
    assert code == 0 and headings == "GPU share GiB weights GiB left GiB"
    assert small.endswith("demo/small 0 92% 44.2 0.0 44.2")
    assert large.endswith("demo/large 2 92% 22.1 0.0 22.1")
    shared = [line.split() for line in doctor.gpu_shares(parse({"pair": "demo"}), [40.0])[0].splitlines()[1:3]]
    assert [line[2] for line in shared] == ["0", "0"] and [line[3] for line in shared] == ["46%", "46%"]
    config = parse({"small": "org/unknown", "large": "http://a:1/v1"})
    unknown = doctor.gpu_shares(config, [40.0])[0].splitlines()
    assert unknown[1].split()[-2:] == ["?", "?"] and len(unknown) == 3


def test_a_pair_that_does_not_fit_is_told_with_the_pairs_that_do() -> None:
    for model_args in ({}, {"pair": "gemma4-e2b-31b", "quantization": "fp8"}):
        text, fits = doctor.gpu_shares(parse(model_args), [24.0])
        assert not fits
        assert (
            "does not fit" in text and "pair=qwen3vl-2b-4b " in text and "pair=qwen3vl-2b-8b,quantization=fp8" in text
        )
        assert "31b" not in text.partition("does not fit")[2].partition("\n")[2]
    assert doctor.gpu_shares(parse({"quantization": "fp8"}), [24.0])[1]
    assert doctor.gpu_shares(parse({}), [31.0])[1]
