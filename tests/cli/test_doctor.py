"""`lmms-eval-mai doctor`: its checks, its report, and the plan of the GPU memory."""

import functools
import http.server
import os
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from support.own_command import run_command
from support.processes import Command

from lmms_eval_mai.cli import doctor, gpus
from lmms_eval_mai.cli.doctor import Finding
from lmms_eval_mai.engines.vllm.environment import Launcher
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.harness.model import MaiCascade
from lmms_eval_mai.run.config import parse


def run(command: type[Command], folder: Path, *arguments: str) -> tuple[int | None, list[str]]:
    line = ("doctor", *arguments)
    code, printed = command(folder, folder / "log", *line, name="lmms-eval-mai", errors=folder / "errors").end()
    return code, printed.strip().splitlines()


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables that the command sets, so that its values do not stay."""
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    monkeypatch.setenv("HF_HUB_VERBOSITY", "error")


def check(model_args: str | None, model: str | None = None) -> tuple[Any, Finding]:
    return doctor.check_arguments(Namespace(model=model, model_args=model_args))


def test_doctor_tells_what_a_pasted_command_would_start_and_what_is_wrong(
    command: type[Command], tmp_path: Path
) -> None:
    code, lines = run(
        command, tmp_path, "torchrun", "--nproc_per_node", "2", "-m", "lmms_eval", "--model", "mai_cascade",
        "--tasks", "shapes_s,shapes_x,shapes_*", "--limit", "-1", "--log_samples",
        "--model_args", "pair=demo,large=http://127.0.0.1:9/v1",
    )  # fmt: skip
    text = "\n".join(lines)
    assert code == 1 and lines[-1] == "2 problems." and len(lines) < 25
    assert lines[0].startswith("ok  arguments      mode=cascade")  # before the slow imports
    assert " ok  model          lmms-eval knows mai_cascade" in text
    assert "ok  tasks          lmms-eval knows shapes_s\n" in text and "lmms-eval knows shapes_*\n" in text
    assert "PROBLEM  tasks          shapes_x is unknown to lmms-eval. Did you mean shapes_" in text
    (small,) = [line for line in lines if " small " in line]
    assert "ok  small" in small and "on the CPU, bfloat16, a KV cache" in small and "context 2048 tokens" in small
    (large,) = [line for line in lines if " large " in line]
    assert "PROBLEM" in large and "http://127.0.0.1:9/v1 does not answer (Connection error" in large


@pytest.mark.parametrize(
    ("model_args", "ok", "words"),
    [
        ("pair=demo,engine=transformers", [True, True, True], ["transformers", "on cpu", "8 calls per batch"]),
        (
            "pair=demo,max_model_len=abc",
            [True, False],
            ["max_model_len=abc is invalid. vLLM: Input should"],
        ),
        ("pair=demo,mode=small,batch=3", [False], ["Unknown model argument 'batch'"]),
        ("mode=both", [False], ["choose one of cascade"]),
        ("demo", [False], ["--model_args must be NAME=VALUE,NAME=VALUE"]),
        (
            "pair=demo,engine=transformers,transfer=sparse,sparse_layer=7",
            [True, True, False],
            ["sparse_layer=7 does not exist, because the large model has 6 layers: give a number from 1 to 6"],
        ),
        (
            "pair=demo,small_engine=transformers,large=http://127.0.0.1:9/v1,transfer=sparse",
            [True, True, False],
            ["large_engine=openai cannot give them", "with a checkpoint, give sparse_from=small"],
        ),
        ("small=/nowhere/at/all,mode=small", [True, False], ["there is no /nowhere/at/all/config.json"]),
    ],
)
def test_engines_are_checked_as_a_run_would_build_them(model_args: str, ok: list[bool], words: list[str]) -> None:
    config, finding = check(model_args)
    found = [finding, *(doctor.check_engines(config, None) if config is not None else ())]
    assert [finding.mark == "ok" for finding in found] == ok
    assert all(word in " ".join(finding.text for finding in found) for word in words)


@pytest.mark.parametrize(
    ("name", "remedy"), [("batch_size", "Write small_batch_size or large_batch_size"), ("device", "small_devices")]
)
def test_arguments_that_lmms_eval_keeps_for_itself_are_refused_by_the_doctor_and_by_a_run(
    name: str, remedy: str
) -> None:
    model_args = f"pair=demo,engine=transformers,{name}=1"
    config, finding = check(model_args)
    assert config is None and f"{name}=1 in --model_args" in finding.text and remedy in finding.text
    with pytest.raises(ArgumentError) as error:
        MaiCascade.create_from_arg_string(model_args, {"batch_size": 1, "max_batch_size": None, "device": None})
    assert str(error.value) == finding.text
    assert check(f"pair=demo,engine=transformers,large_{name}=1")[1].mark == "ok"


def test_only_the_arguments_of_mai_cascade_are_checked() -> None:
    config, finding = check("pretrained=x", model="mai_casc")
    assert config is None and (finding.name, finding.mark) == ("model", "PROBLEM")
    assert finding.text.endswith("--model is mai_casc. Did you mean mai_cascade?")
    assert check(None, model="mai_cascade")[1].mark == "ok"


def test_failed_optional_check_is_not_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [Finding("torch", "ok", "2.13"), Finding("vllm", "optional", "cannot be imported. Install it.")]
    assert doctor.report(findings) == 0
    assert "optional  vllm           cannot be imported. Install it." in capsys.readouterr().out


# --- the hub ----------------------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The address of a hub on this machine, with one model."""
    model = tmp_path / "api" / "models" / "an" / "owned-model"
    model.mkdir(parents=True)
    (model / "auth-check").write_text("{}")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()


def test_hub_that_does_not_answer_is_used_no_more(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", server)
    assert doctor.hub_absence() is None and not constants.is_offline_mode()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert doctor.hub_absence() == "http://127.0.0.1:9 cannot be reached"
    assert constants.is_offline_mode() and os.environ["HF_HUB_OFFLINE"] == "1"
    assert doctor.hub_absence() == "HF_HUB_OFFLINE is set"


def test_model_must_be_on_this_machine_or_on_the_hub(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", server)
    with pytest.raises(ArgumentError, match="HF_HUB_OFFLINE is set, and Qwen/Qwen3-VL-2B-Instruct is not in the cache"):
        doctor.check_model(parse({}).small, "HF_HUB_OFFLINE is set")
    doctor.check_model(parse({"pair": "demo"}).small, "HF_HUB_OFFLINE is set")
    doctor.check_model(parse({"small": "an/owned-model"}).small, None)
    with pytest.raises(ArgumentError, match=r"The hub does not give small=no/such-model \(HTTP 404\)"):
        doctor.check_model(parse({"small": "no/such-model"}).small, None)


@pytest.mark.slow
def test_without_network_the_report_is_complete_and_has_no_noise(tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    line = ["doctor", "--model", "mai_cascade", "--tasks", "pope_s"]
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lmms-eval-mai"), *line],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    problems = [line.split()[1] for line in done.stdout.splitlines() if "PROBLEM" in line]
    assert done.returncode == 1 and problems == ["small", "large"]
    assert " warning  hub " in done.stdout and "retr" not in done.stderr.lower()


# --- how the models share GPUs ----------------------------------------------------------------------------


def described(text: str, **arguments: Any) -> str:
    """Return the plan for these GPUs, without line breaks."""
    lines, _ = gpus.describe(parse(arguments), gpus.parse_gpus(text), Launcher())
    return " ".join(" ".join(lines).split())


def test_shares_of_other_gpus_are_shown_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run_command(capsys, "doctor", "--gpus", "48GiB", "--model", "mai_cascade", "--tasks", "pope_s")
    lines = text.splitlines()
    headings, small, large = (" ".join(line.split()) for line in lines[2:5])
    assert code == 0 and lines[0] == "On 1 x 48GiB:"
    assert headings == "GPU weights GiB share KV cache GiB KV cache tokens context"
    assert small == "small Qwen/Qwen3-VL-2B-Instruct 0 4.0 33% 8.4 78,968 32,768 fits"
    assert large == "large Qwen/Qwen3-VL-8B-Instruct 0 16.3 59% 8.4 61,402 32,768 fits"


@pytest.mark.parametrize(
    ("gpus_text", "model_args", "words"),
    [
        ("24GiB", "pair=qwen3vl-4b-8b", ["Does not fit.", "quantization=fp8", "smaller models"]),
        *((text, "", ["--gpus"]) for text in ("3xL5", "0.5GiB", "70xL4", "")),
        ("L4", "devices=3", ["devices=3 names a GPU that does not exist"]),
        ("L4", "large=/a/no-such-model", ["The size of a model is unknown"]),
    ],
)
def test_models_that_do_not_fit_and_gpus_that_do_not_exist_end_with_1(
    capsys: pytest.CaptureFixture[str], gpus_text: str, model_args: str, words: list[str]
) -> None:
    code, *texts = run_command(capsys, "doctor", "--gpus", gpus_text, "--model_args", model_args)
    assert code == 1 and all(word in " ".join(" ".join(texts).split()) for word in words)


@pytest.mark.parametrize(
    ("text", "gib"),
    [
        ("L4", [22.5]), ("NVIDIA L4", [22.5]), ("4090", [24]), ("2x48GiB", [48, 48]), ("L4+24GiB", [22.5, 24]),
        ("H100 80GB HBM3", [79.6]), ("A100-SXM4-80GB", [80]), ("23034MiB", [22.5]), ("8\u00d7H200", [140.4] * 8),
    ],
)  # fmt: skip
def test_text_of_gpus_is_understood(text: str, gib: list[float]) -> None:
    assert [gpu.total_bytes / 2**30 for gpu in gpus.parse_gpus(text)] == pytest.approx(gib, abs=0.06)


def test_report_names_idle_gpus_a_shared_gpu_and_engines_of_other_kinds() -> None:
    assert "tight" in described("24GiB", quantization="fp8")
    assert "6 of 8 GPUs are idle. `torchrun --nproc_per_node 8 -m lmms_eval ...`" in described("8x80GiB")
    assert "idle" not in described("2x48GiB") and "nvidia-cuda-mps-control" not in described("2x48GiB")
    assert "nvidia-cuda-mps-control -d" in described("H100")
    assert "The small model is left out, because its engine is openai." in described("H100", small="http://a:1/v1")
    assert "no vLLM engine" in described("H100", engine="openai", small="http://a/v1", large="http://b/v1")


def test_machine_without_a_gpu_shows_its_cores_and_how_to_ask_for_another_machine() -> None:
    """The tests run vLLM's build for the CPU."""
    assert "CPU cores" in doctor.devices()
    (found,) = doctor.check_memory(parse({}))
    assert found.mark == "skipped" and "doctor --gpus L4" in found.text
    assert list(doctor.check_memory(parse({"engine": "transformers"}))) == []
