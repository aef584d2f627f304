"""What all commands have in common: a quick help, and options that are refused."""

import subprocess
import sys
from typing import Any

import pytest
from support.own_command import run_command

HELP = """
import sys
from lmms_eval_mai.cli import main
try:
    main([sys.argv[1], "--help"])
except SystemExit:
    print(*({"torch", "pandas", "transformers", "lmms_eval.tasks", "vllm"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("command", ["doctor", "ask", "compare", "calibrate", "serve"])
def test_help_imports_nothing_slow(command: str) -> None:
    done = subprocess.run([sys.executable, "-c", HELP, command], capture_output=True, text=True, timeout=100)
    assert f"usage: lmms-eval-mai {command}" in done.stdout and done.stderr.strip() == ""


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["ask", "--question", "Why?", "--imag", "x"], "--image?"),
        (["ask"], "--question"),
        (["doctor", "--model_arg", "x"], "--model_args"),
        (["serve", "--max-queue", "3"], "--max_queue?"),
        (["compare", "--paper", "qwen"], "--output_path"),
        (["compare", "--paper", "gpt", "--output_path", "x"], "--paper"),
        (["calibrate", "--max_loss", "1"], "DIR"),
        (["calibrate", "x", "--looks=2"], "--confidence"),
    ],
)
def test_unknown_missing_and_contradicting_options_end_with_code_2(
    capsys: Any, arguments: list[str], option: str
) -> None:
    code, printed, error = run_command(capsys, *arguments)
    assert (code, printed) == (2, "") and option in error.splitlines()[-1] and "Traceback" not in error
