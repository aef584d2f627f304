"""`lmms-eval-mai doctor`: its checks and its report."""

from pathlib import Path

import pytest
from support.processes import Command

from lmms_eval_mai.cli import doctor


def run(command: type[Command], folder: Path, *arguments: str) -> tuple[int | None, list[str]]:
    line = ("doctor", *arguments)
    code, printed = command(folder, folder / "log", *line, name="lmms-eval-mai", errors=folder / "errors").end()
    return code, printed.strip().splitlines()


def test_doctor_tells_what_a_command_would_start_and_what_is_wrong(command: type[Command], tmp_path: Path) -> None:
    code, lines = run(
        command, tmp_path, "--model", "mai_cascade", "--tasks", "pope_s,nope", "--limit", "4",
        "--model_args", "pair=demo,large=http://127.0.0.1:9/v1",
    )  # fmt: skip
    text = "\n".join(lines)
    assert code == 1 and lines[-1] == "2 problems." and len(lines) < 25
    assert lines[0].startswith("ok  arguments      mode=cascade")  # before the slow imports
    assert " ok  model          lmms-eval knows mai_cascade" in text
    assert "lmms-eval knows pope_s and" in text and "PROBLEM  tasks          nope is unknown" in text
    (small,) = [line for line in lines if " small " in line]
    assert "ok  small" in small and "vllm" in small and "context 2048 tokens" in small
    (large,) = [line for line in lines if " large " in line]
    assert "PROBLEM" in large and "http://127.0.0.1:9/v1 does not answer (Connection error" in large


@pytest.mark.parametrize(
    ("model_args", "ok", "words"),
    [
        ("pair=demo,engine=transformers", [True, True, True], ["transformers", "on cpu", "8 calls per batch"]),
        ("pair=demo,mode=small,batch=3", [False], ["Unknown model argument 'batch'"]),
        ("mode=both", [False], ["choose one of cascade"]),
        ("small=/nowhere/at/all,mode=small", [True, False], ["there is no /nowhere/at/all/config.json"]),
    ],
)
def test_engines_are_checked_as_a_run_would_build_them(model_args: str, ok: list[bool], words: list[str]) -> None:
    config, finding = doctor.check_arguments(model_args)
    found = [finding, *doctor.check_engines(config)]
    assert [finding.ok for finding in found] == ok
    assert all(word in " ".join(finding.text for finding in found) for word in words)


def test_failed_optional_check_is_not_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [
        doctor.Finding("torch", True, "2.13"),
        doctor.Finding("vllm", False, "cannot be imported. Install it.", required=False),
    ]
    assert doctor.report(findings) == 0
    assert "optional  vllm           cannot be imported. Install it." in capsys.readouterr().out
