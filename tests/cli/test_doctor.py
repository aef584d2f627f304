"""`lmms-eval-mai doctor`: its checks and its report."""

from pathlib import Path
from typing import Any

import pytest
from support.processes import Command

from lmms_eval_mai.cli import command_line, doctor, gpu_report, hub, machine
from lmms_eval_mai.cli.findings import Finding, report
from lmms_eval_mai.cli.gpus import parse_gpus
from lmms_eval_mai.engines.vllm.environment import Launcher
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


# --- how the models share GPUs ----------------------------------------------------------------------------


def described(gpus: str, **arguments: Any) -> str:
    """Return the report for these GPUs, without line breaks."""
    lines, _ = gpu_report.describe(parse(arguments), parse_gpus(gpus), Launcher())
    return " ".join(" ".join(lines).split())


def test_shares_of_other_gpus_are_shown_without_a_gpu(command: type[Command], tmp_path: Path) -> None:
    code, lines = run(command, tmp_path, "--gpus", "48GiB", "--model", "mai_cascade", "--tasks", "pope_s")
    headings, small, large = lines[2:5]
    assert code == 0 and lines[0] == "On 1 x 48GiB:"
    assert headings.split() == [
        "GPU",
        "weights",
        "GiB",
        "share",
        "KV",
        "cache",
        "GiB",
        "KV",
        "cache",
        "tokens",
        "context",
    ]
    assert small.split() == ["small", "Qwen/Qwen3-VL-2B-Instruct", "0", "4.0", "33%", "8.4", "78,968", "32,768", "fits"]
    assert large.split() == [
        "large",
        "Qwen/Qwen3-VL-8B-Instruct",
        "0",
        "16.3",
        "59%",
        "8.4",
        "61,402",
        "32,768",
        "fits",
    ]


def test_pair_that_does_not_fit_ends_with_1_and_two_ways_out(command: type[Command], tmp_path: Path) -> None:
    code, lines = run(command, tmp_path, "--gpus", "24GiB", "--model_args", "pair=qwen3vl-4b-8b")
    text = " ".join(lines)
    assert code == 1 and "Does not fit." in text and "quantization=fp8" in text and "smaller models" in text
    assert "tight" in described("24GiB", quantization="fp8")


def test_wrong_arguments_and_unknown_gpus_end_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    for gpus in ("3xL5", "0.5GiB", "70xL4", ""):
        assert gpu_report.report(gpus, parse({})) == 1
        assert "--gpus" in capsys.readouterr().out
    assert gpu_report.report("L4", parse({"devices": 3})) == 1
    assert "devices=3 names a GPU that does not exist" in " ".join(capsys.readouterr().out.split())
    assert gpu_report.report("L4", parse({"large": "/a/no-such-model"})) == 1
    assert "The size of a model is unknown" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "gib"),
    [
        ("L4", [22.5]), ("NVIDIA L4", [22.5]), ("4090", [24]), ("2x48GiB", [48, 48]), ("L4+24GiB", [22.5, 24]),
        ("H100 80GB HBM3", [79.6]), ("A100-SXM4-80GB", [80]), ("23034MiB", [22.5]), ("8\u00d7H200", [140.4] * 8),
    ],
)  # fmt: skip
def test_text_of_gpus_is_understood(text: str, gib: list[float]) -> None:
    assert [gpu.total_bytes / 2**30 for gpu in parse_gpus(text)] == pytest.approx(gib, abs=0.06)


def test_report_names_idle_gpus_a_shared_gpu_and_engines_of_other_kinds() -> None:
    assert "6 of 8 GPUs are idle. `torchrun --nproc_per_node 8 -m lmms_eval ...`" in described("8x80GiB")
    assert "idle" not in described("2x48GiB") and "nvidia-cuda-mps-control" not in described("2x48GiB")
    assert "nvidia-cuda-mps-control -d" in described("H100")
    assert "The small model is left out, because its engine is openai." in described("H100", small="http://a:1/v1")
    assert "no vLLM engine" in described("H100", engine="openai", small="http://a/v1", large="http://b/v1")


def test_machine_without_a_gpu_shows_its_cores_and_how_to_ask_for_another_machine() -> None:
    """The tests run vLLM's build for the CPU."""
    assert "CPU cores" in machine.devices()
    (found,) = machine.plan(None)
    assert found.mark == "skipped" and "doctor --gpus L4" in found.text
    assert list(machine.plan(parse({"engine": "transformers"}))) == []
