"""`lmms-eval-mai doctor`: its checks and its report."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import vllm.third_party.pynvml as pynvml
from support.nvml import Device, install
from support.processes import Command

from lmms_eval_mai.cli import command_line, doctor, gpu_report, hub
from lmms_eval_mai.cli import machine as machine_
from lmms_eval_mai.cli.findings import Finding, report
from lmms_eval_mai.engines.vllm.nvml import visible_gpus
from lmms_eval_mai.engines.vllm.placement import Launcher
from lmms_eval_mai.engines.vllm.planning.gpus import parse_gpus
from lmms_eval_mai.run.config import parse


def run(command: type[Command], folder: Path, *arguments: str) -> tuple[int | None, list[str]]:
    line = ("doctor", *arguments)
    code, printed = command(folder, folder / "log", *line, name="lmms-eval-mai", errors=folder / "errors").end()
    return code, printed.strip().splitlines()


def test_doctor_tells_what_a_command_would_start_and_what_is_wrong(command: type[Command], tmp_path: Path) -> None:
    code, lines = run(
        command, tmp_path, "--model", "mai_cascade", "--tasks", "shapes_s,shapes_x", "--limit", "4",
        "--model_args", "pair=demo,large=http://127.0.0.1:9/v1",
    )  # fmt: skip
    text = "\n".join(lines)
    assert code == 1 and lines[-1] == "2 problems." and len(lines) < 25
    assert lines[0].startswith("ok  arguments      mode=cascade")  # before the slow imports
    assert " ok  model          lmms-eval knows mai_cascade" in text
    assert "ok  tasks          lmms-eval knows shapes_s\n" in text
    assert "PROBLEM  tasks          shapes_x is unknown to lmms-eval. Did you mean shapes_" in text
    assert "ok  options" not in text and "ok  data           shapes_s: " in text
    (small,) = [line for line in lines if " small " in line]
    assert (
        "ok  small" in small
        and "vllm" in small
        and "on the CPU, bfloat16, a KV cache" in small
        and "context 2048 tokens" in small
    )
    (large,) = [line for line in lines if " large " in line]
    assert "PROBLEM" in large and "http://127.0.0.1:9/v1 does not answer (Connection error" in large


@pytest.mark.parametrize(
    ("model_args", "ok", "words"),
    [
        ("pair=demo,engine=transformers", [True, True, True], ["transformers", "on cpu", "8 calls per batch"]),
        ("pair=demo,max_model_len=abc", [True, False], ["max_model_len=abc is invalid: vLLM expects an integer."]),
        ("pair=demo,mode=small,batch=3", [False], ["Unknown model argument 'batch'"]),
        ("mode=both", [False], ["choose one of cascade"]),
        (
            "pair=demo,engine=transformers,transfer=sparse,sparse_layer=7",
            [True, True, False],
            ["sparse_layer=7 does not exist, because the large model has 6 layers: give a number from 1 to 6"],
        ),
        (
            "pair=demo,small_engine=transformers,large=http://127.0.0.1:9/v1,transfer=sparse",
            [True, True, False],
            [
                "large_engine=openai cannot give them",
                "with a checkpoint, give sparse_from=small, or leave transfer out",
            ],
        ),
        ("small=/nowhere/at/all,mode=small", [True, False], ["there is no /nowhere/at/all/config.json"]),
    ],
)
def test_engines_are_checked_as_a_run_would_build_them(model_args: str, ok: list[bool], words: list[str]) -> None:
    config, finding = command_line.check_arguments(model_args)
    found = [finding, *doctor.check_engines(config, hub.Hub("https://huggingface.co", None))]
    assert [finding.mark == "ok" for finding in found] == ok
    assert all(word in " ".join(finding.text for finding in found) for word in words)


def test_failed_optional_check_is_not_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [
        Finding("torch", "ok", "2.13"),
        Finding("vllm", "optional", "cannot be imported. Install it."),
    ]
    assert report(findings) == 0
    assert "optional  vllm           cannot be imported. Install it." in capsys.readouterr().out


# --- the plan of the GPU memory ---------------------------------------------------------------------------


def plan(gpus: str, **arguments: Any) -> str:
    """Return the report for these GPUs, without line breaks."""
    return " ".join(" ".join(gpu_report.describe(parse(arguments), parse_gpus(gpus), Launcher())).split())


def test_plan_for_other_gpus_is_shown_without_a_gpu_and_has_every_term(command: type[Command], tmp_path: Path) -> None:
    code, lines = run(command, tmp_path, "--gpus", "2x48GiB", "--model", "mai_cascade", "--tasks", "pope_s")
    rows = {line[:31].strip(): line[31:].split("   ") for line in lines[2:15]}
    assert code == 0 and lines[0] == "The plan for 2 x 48 GiB:"
    assert list(rows) == [
        "", "model", "GPU", "weights", "vision tower, largest images", "buffers", "CUDA graphs", "KV cache",
        "sum on each GPU", "context", "KV cache holds", "largest image", "calls at the same time",
    ]  # fmt: skip
    terms = [float(rows[name][0].split()[0]) for name in list(rows)[3:8]]
    assert sum(terms) == pytest.approx(float(rows["sum on each GPU"][0].split()[0]), abs=0.3)


def test_pair_that_does_not_fit_ends_with_1_and_what_would_fit(command: type[Command], tmp_path: Path) -> None:
    code, lines = run(command, tmp_path, "--gpus", "24GiB", "--model_args", "pair=qwen3vl-4b-8b")
    text = " ".join(lines)
    assert code == 1 and "do not fit GPU 0 (24 GiB)" in text and "GiB are missing" in text
    assert "sleep=true" in text and "quantization=fp8" in text


def test_wrong_arguments_and_unknown_gpus_end_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_report.report("3xL5", parse({})) == 1
    assert "--gpus 3xL5 is not understood" in capsys.readouterr().out
    assert gpu_report.report("L4", parse({"pair": "qwen3vl-2b-4b"})) == 0


def test_model_whose_size_is_unknown_ends_with_1_and_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        ({"quantization": "int4"}, "large=Qwen/Qwen3-VL-8B-Instruct is unknown: quantization=int4 is not one of"),
        ({"large": "/a/no-such-model"}, "large=/a/no-such-model is unknown: it is not on this machine. Check its name"),
    ):
        assert gpu_report.report("L4", parse(arguments)) == 1
        assert words in " ".join(capsys.readouterr().out.split())
    assert gpu_report.report("L4", parse({"quantization": "FP8"})) == 0  # vLLM reads it in small letters


def test_size_is_shown_with_the_way_to_a_more_exact_plan(capsys: pytest.CaptureFixture[str]) -> None:
    for gpus, arguments, shown in (
        ("24GiB", {}, True), ("80GiB", {}, True), ("80000MiB", {}, False), ("H100", {}, False),
        ("80GiB", {"devices": 9}, False),
    ):  # fmt: skip
        gpu_report.report(gpus, parse(arguments))
        assert ("gives a more exact plan" in " ".join(capsys.readouterr().out.split())) == shown, (gpus, arguments)


def test_engines_that_the_user_starts_without_a_check_are_named_if_they_do_not_fit() -> None:
    given = {"max_model_len": 8192, "gpu_memory_utilization": 0.01}
    assert "The small engine starts without a check" in plan("24GiB", **given)
    assert "without a check" not in plan("80GiB", max_model_len=8192, gpu_memory_utilization=0.4)


def test_plan_tells_how_to_use_idle_gpus() -> None:
    assert "GPUs 2-7 are idle. `torchrun --nproc_per_node 8 -m lmms_eval ...` uses all 8" in plan("8x80GiB")
    assert "GPU 3 is idle" in plan("4x24GiB") and "torchrun" not in plan("4x24GiB")
    assert "GPUs 1-3 are idle" in plan("4xL4", mode="small")
    assert "large_data_parallel_size=3 uses more of them" in plan("8x24GiB")
    replicas = plan("8x24GiB", large_data_parallel_size=3)
    assert "1-6, 3 replicas, tensor_parallel_size=2" in replicas
    assert "GPU 7 is idle" in replicas and "uses more of them" not in replicas
    assert "idle" not in plan("2x48GiB")
    assert "Leave out sleep=true" in plan("2x48GiB", sleep=True) and "idle" not in plan("2x48GiB", sleep=True)
    assert "Leave out sleep=true" in plan("48GiB", sleep=True) and "Leave out sleep" not in plan("24GiB", sleep=True)
    assert "GPU 1 is idle. The devices of the command leave it out." in plan("2x48GiB", devices=0)


def test_plan_tells_what_a_run_does_to_images_and_to_the_machine() -> None:
    assert "Images of more than 3,145,728 pixels are made smaller" in plan("L4", pair="qwen3vl-2b-4b")
    different = plan("H100", small_max_model_len=8192, large_max_model_len=16384)
    assert "more than 3,145,728 pixels for the small model and 4,194,304 pixels for the large model are" in different
    assert "made smaller" not in plan("H100") and "nvidia-cuda-mps-control -d" in plan("H100")
    sleeping = plan("24GiB", sleep=True)
    assert "take turns" in sleeping and "up to 25.4 GiB" in sleeping and "nvidia-cuda-mps" not in sleeping
    assert "up to 64 samples (max_open_samples, as given" in plan("H100", max_open_samples=64)
    assert "small model is not part of the plan" in plan("H100", small="http://a:1/v1")
    assert "no vLLM engine" in plan("H100", engine="openai", small="http://a/v1", large="http://b/v1")


Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    visible_gpus.cache_clear()
    yield lambda *devices: install(devices, monkeypatch)
    visible_gpus.cache_clear()


def test_gpus_and_plan_of_this_machine_are_shown_without_a_cuda_context(machine: Machine) -> None:
    """PyTorch is a build without CUDA here: it could not open a context."""
    machine(Device("NVIDIA L40S", "GPU-1", 45, 44), Device("NVIDIA L40S", "GPU-2", 45, 20))
    assert machine_.devices() == "0: NVIDIA L40S, 44 of 45 GiB free; 1: NVIDIA L40S, 20 of 45 GiB free"
    *_, found = machine_.plan(parse({"small_devices": 1, "large_devices": 0}))
    assert found.mark == "ok" and "2 x NVIDIA L40S, of which 20.0 GiB are free" in found.text and "8B" in found.text


def test_problems_of_this_machine_and_its_gpus_are_found(machine: Machine) -> None:
    machine(Device("NVIDIA H100", "GPU-1", 80, 79, mode=pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS))
    problem, *_, plan_ = machine_.plan(None)
    assert problem.mark == "PROBLEM" and "EXCLUSIVE_PROCESS" in problem.text and plan_.mark == "ok"
    assert "compute mode exclusive" in machine_.devices()


def test_pair_that_does_not_fit_this_machine_is_a_problem(machine: Machine) -> None:
    machine(Device("NVIDIA L4", "GPU-1", 22.5, 22))
    (problem,) = machine_.plan(None)
    assert problem.mark == "PROBLEM" and "do not fit GPU 0 (NVIDIA L4)" in problem.text


def test_machine_without_a_gpu_and_models_of_unknown_size_have_no_plan(machine: Machine) -> None:
    machine()
    (found,) = machine_.plan(None)
    assert found.mark == "skipped" and "doctor --gpus L4" in found.text
    assert list(machine_.plan(parse({"engine": "transformers"}))) == []
    visible_gpus.cache_clear()
    machine(Device("NVIDIA L4", "GPU-1", 22.5, 22))
    *_, found = machine_.plan(parse({"quantization": "int8"}))
    assert found.mark == "skipped" and "quantization=int8" in found.text


def test_gpu_whose_memory_cannot_be_read_is_a_problem_unless_the_user_divides_it(machine: Machine) -> None:
    machine(Device("NVIDIA GB10", "GPU-1", 0))
    (problem,) = machine_.plan(None)
    assert problem.mark == "PROBLEM" and "cannot be read" in problem.text and "memory unknown" in machine_.devices()
    given = {"max_model_len": 8192, "gpu_memory_utilization": 0.4}
    assert list(machine_.plan(parse(given))) == []
