"""Runs `lmms-eval-mai` in this process, as a user types it."""

from typing import Any

import pytest

from lmms_eval_mai import cli


def run_command(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    """Return the exit code of the command, and what it prints to standard output and to standard error."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main([*map(str, arguments)])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def refusal(capsys: Any, *arguments: object) -> str:
    """Return the one message of a command that ends with exit code 1 and prints nothing else."""
    code, printed, errors = run_command(capsys, *arguments)
    messages = [line for line in errors.splitlines() if line.startswith("lmms-eval-mai: ")]
    assert (code, printed, len(messages)) == (1, "", 1) and "Traceback" not in errors, errors
    return messages[0]
