"""The command `lmms-eval-mai profile`."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.own_command import run_command
from support.profiles import TINY

from lmms_eval_mai.times.profile import write


def test_profiles_of_files_are_printed_and_two_are_compared(tmp_path: Path, capsys: Any) -> None:
    files = [write(dataclasses.replace(TINY, name=name), tmp_path) for name in ("little", "big")]
    code, out, err = run_command(capsys, "profile", "--read", *files)
    assert (code, err) == (0, "")
    assert "## Table 3: time to first token" in out and "## Figure 1 (a): where the large model is faster" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--read", "no.json"), "The profile no.json cannot be read (No such file or directory)."),
        (("--pair", "no-such-pair"), "pair=no-such-pair is unknown"),
        (("--model", "./no/model", "--engine", "transformers"), "large=./no/model does not exist"),
        (("--model", "x/y", "--repeats", "0"), "--repeats 0 is invalid: expected at least 1."),
        (("--model", "x/y", "--output_path", __file__), f"No profile can be written to {__file__} (File exists). "),
    ],
)
def test_wrong_arguments_end_with_one_line_and_exit_code_1(
    capsys: Any, arguments: tuple[str, ...], sentence: str
) -> None:
    code, out, err = run_command(capsys, "profile", *arguments)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"lmms-eval-mai: {sentence}")
