"""`lmms-eval-mai doctor`: its checks, its report, and the shares of the GPU memory."""

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
    assert "ok  small" in small and "on the CPU, bfloat16, context 2048 tokens" in small
    (large,) = [line for line in lines if " large " in line]
    assert "PROBLEM" in large and "http://127.0.0.1:9/v1 does not answer" in large


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
        ("small=/nowhere/at/all,mode=small", [True, False], ["/nowhere/at/all does not exist"]),
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


def test_shares_of_other_gpus_are_shown_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run_command(capsys, "doctor", "--gpus", "2x48GiB+24", "--model_args", "pair=demo,large_devices=2")
    headings, small, large, _ = (" ".join(line.split()) for line in text.splitlines())
    assert code == 0 and headings == "GPU share GiB weights GiB left GiB"
    assert small.endswith("demo/small 0 92% 44.2 0.0 44.2") and large.endswith("demo/large 2 92% 22.1 0.0 22.1")
    shared = [line.split() for line in gpus.describe(parse({"pair": "demo"}), [40.0])[1:3]]
    assert [line[2] for line in shared] == ["0", "0"] and [line[3] for line in shared] == ["46%", "46%"]
    unknown = gpus.describe(parse({"small": "org/not-on-this-machine", "large": "http://a:1/v1"}), [40.0])
    assert unknown[1].split()[-2:] == ["?", "?"] and len(unknown) == 3


@pytest.mark.parametrize(
    ("text", "model_args"),
    [("3xL5", ""), ("0.5GiB", ""), ("", ""), ("24", "devices=3"), ("24", "large_tensor_parallel_size=2")],
)
def test_gpus_that_do_not_exist_end_with_1(capsys: pytest.CaptureFixture[str], text: str, model_args: str) -> None:
    code, *texts = run_command(capsys, "doctor", "--gpus", text, "--model_args", model_args)
    assert code == 1 and ("--gpus" if not model_args else model_args.split("=")[0].removeprefix("large_")) in str(texts)


def test_machine_without_a_gpu_shows_its_cores() -> None:
    """The tests run vLLM's build for the CPU."""
    assert "CPU cores" in doctor.devices()
    assert list(doctor.check_memory(parse({}))) == []
