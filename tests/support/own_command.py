"""Runs `lmms-eval-mai` and `lmms-eval` in this process, as a user types them."""

import sys
from importlib.metadata import entry_points
from typing import Any

import pytest

from lmms_eval_mai import cli


def run_command(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    """Return the exit code of `lmms-eval-mai`, and what it prints to standard output and to standard error."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main([*map(str, arguments)])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def run_lmms_eval(capsys: Any, *arguments: str) -> tuple[int, str]:
    """Return the exit code of `lmms-eval`, and all that it prints before the process ends."""
    capsys.readouterr()
    (script,) = entry_points(group="console_scripts", name="lmms-eval")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["lmms-eval", *arguments])
        sys.exit(script.load()())
    return int(ended.value.code or 0), "".join(capsys.readouterr())
