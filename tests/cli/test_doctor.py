"""`lmms-eval-mai doctor`: its checks, its report, and the shares of the GPU memory."""

import functools
import http.server
import os
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
from lmms_eval_mai.plugin import task_dir
from lmms_eval_mai.run import presets
from lmms_eval_mai.run.config import parse

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables that the command sets, so that its values do not stay."""
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    monkeypatch.setenv("HF_HUB_VERBOSITY", "error")


def check(model_args: str | None, model: str | None = None) -> tuple[Any, Finding]:
    return doctor.check_arguments(Namespace(model=model, model_args=model_args, pair=None))


def run(command: type[Command], folder: Path, *line: str, **environment: str) -> tuple[int | None, str]:
    """Return the exit code of the command, and what it prints to standard output."""
    options = {"name": "lmms-eval-mai", "errors": folder / "errors", "environment": environment}
    return command(folder, folder / "log", "doctor", *line, **options).end()


@pytest.mark.slow
def test_a_pasted_command_is_checked_and_each_problem_is_named(capsys: Any) -> None:
    code, text, _ = run_command(
        capsys, "doctor", "torchrun", "--nproc_per_node", "2", "-m", "lmms_eval", "--model", "mai_cascade",
        "--tasks", "shapes_s,shapes_x,shapes_*", "--limit", "-1", "--log_samples",
        "--pair", "demo", "--model_args", f"large={NOWHERE}/v1",
    )  # fmt: skip
    lines = text.strip().splitlines()
    assert code == 1 and lines[-1] == "2 problems." and len(lines) < 25
    assert lines[0].split()[:2] == ["ok", "arguments"]  # before the slow imports
    problems = [line for line in lines if "PROBLEM" in line]
    assert [line.split()[1] for line in problems] == ["tasks", "large"]
    assert "shapes_x" in problems[0] and NOWHERE in problems[1]
    assert any(line.split()[:2] == ["ok", "small"] for line in lines)


@pytest.mark.long
def test_without_network_the_report_is_complete_and_has_no_noise(command: type[Command], tmp_path: Path) -> None:
    line = ("--model", "mai_cascade", "--tasks", "pope_s")
    code, text = run(command, tmp_path, *line, HF_HUB_OFFLINE="0", HF_ENDPOINT=NOWHERE)
    assert [line.split()[1] for line in text.splitlines() if "PROBLEM" in line] == ["small", "large"]
    assert code == 1 and " warning  hub " in text and "retr" not in (tmp_path / "errors").read_text().lower()


@pytest.mark.long
def test_without_a_command_the_pairs_and_the_folder_of_the_tasks_are_shown(capsys: Any, task_manager: Any) -> None:
    code, text, _ = run_command(capsys, "doctor")
    assert code == 0 and str(task_dir()) in text
    assert [name for name in presets.names() if f" {name} " not in text] == []
    assert text.count("(default)") == 1


@pytest.mark.parametrize(
    ("model_args", "ok", "word"),
    [
        ("pair=demo,engine=transformers", [True, True, True], "on cpu"),
        ("pair=demo,max_model_len=abc", [True, False, False], "max_model_len=abc"),
        ("pair=demo,method=small,batch=3", [False], "batch"),
        ("method=both", [False], "method=both"),
        ("demo", [False], "--model_args"),
        ("pair=demo,engine=transformers,transfer=sparse,sparse_layer=7", [True, True, False], "sparse_layer=7"),
        (f"pair=demo,small_engine=transformers,large={NOWHERE}/v1,transfer=sparse", [True, True, False], "sparse"),
        ("small=/nowhere/at/all,method=small", [True, False], "/nowhere/at/all"),
    ],
)
def test_engines_are_checked_as_a_run_would_build_them(model_args: str, ok: list[bool], word: str) -> None:
    config, finding = check(model_args)
    engines = [] if config is None else [doctor.check_engine(config, engine) for engine in config.engines()]
    assert [one.mark == "ok" for one in (finding, *engines)] == ok
    assert word in " ".join(one.text for one in (finding, *engines))


def test_an_argument_that_lmms_eval_keeps_for_itself_is_refused_by_the_doctor_and_by_a_run() -> None:
    model_args = "pair=demo,engine=transformers,device=1"
    config, finding = check(model_args)
    assert config is None and "small_device" in finding.text
    with pytest.raises(ArgumentError) as error:
        MaiCascade.create_from_arg_string(model_args, {"batch_size": 1, "max_batch_size": None, "device": None})
    assert str(error.value) == finding.text
    assert check("pair=demo,engine=transformers,large_device=1")[1].mark == "ok"


@pytest.mark.parametrize(("name", "mark"), [("vllm", "warning"), ("torchvision", "PROBLEM")])
def test_package_of_a_wrong_build_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, name: str, mark: str
) -> None:
    (tmp_path / f"{name}.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    with monkeypatch.context() as patch:
        patch.delitem(doctor.sys.modules, name, raising=False)
        finding = doctor.check_package(name)
    assert finding.mark == mark and doctor.REMEDIES[name] in finding.text
    assert doctor.report([finding]) == (mark == "PROBLEM")


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
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{found.server_port}")
        yield constants.ENDPOINT
        found.shutdown()


def test_hub_that_does_not_answer_is_used_no_more(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_hub().mark == "ok" and not constants.is_offline_mode()
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    assert doctor.check_hub().mark == "warning"
    assert constants.is_offline_mode() and os.environ["HF_HUB_OFFLINE"] == "1"
    assert doctor.check_hub().mark == "ok"


def test_model_must_be_on_this_machine_or_on_the_hub(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    doctor.check_model(parse({"small": "an/owned-model"}).small)
    with pytest.raises(ArgumentError, match="no/such-model"):
        doctor.check_model(parse({"small": "no/such-model"}).small)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    doctor.check_model(parse({"pair": "demo"}).small)
    with pytest.raises(ArgumentError, match="Qwen/Qwen3-VL-2B-Instruct"):
        doctor.check_model(parse({}).small)


# --- how the models share GPUs ----------------------------------------------------------------------------


def test_shares_of_other_gpus_are_shown_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run_command(capsys, "doctor", "--gpus", "48,48,24", "--model_args", "pair=demo,large_devices=2")
    headings, small, large, _ = (" ".join(line.split()) for line in text.splitlines())
    assert code == 0 and headings == "GPU share GiB weights GiB left GiB KV cache GiB"
    assert small.endswith("demo/small 0 92% 44.2 0.0 44.2 measured") and large.endswith(
        "demo/large 2 92% 22.1 0.0 22.1 measured"
    )
    shared = [line.split() for line in gpus.describe(parse({"pair": "demo"}), [40.0])[1:3]]
    assert [line[2] for line in shared] == ["0", "0"] and [line[3] for line in shared] == ["46%", "46%"]
    assert 14 < float(shared[0][-1]) < 17  # both start at the same time
    unknown = gpus.describe(parse({"small": "org/not-on-this-machine", "large": "http://a:1/v1"}), [40.0])
    assert unknown[1].split()[-3:] == ["?", "?", "measured"] and len(unknown) == 3


@pytest.mark.parametrize(
    ("text", "model_args"),
    [("L5", ""), ("0.5", ""), ("24", "devices=3")],
)
def test_gpus_that_do_not_exist_end_with_1(capsys: pytest.CaptureFixture[str], text: str, model_args: str) -> None:
    code, *texts = run_command(capsys, "doctor", "--gpus", text, "--model_args", model_args)
    assert code == 1 and ("--gpus" if not model_args else model_args.split("=")[0].removeprefix("large_")) in str(texts)
