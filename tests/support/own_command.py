"""Runs `lmms-eval-mai` and `lmms-eval` in this process, as a user types them."""

import sys
from importlib.metadata import entry_points
from typing import Any

import pytest
import yaml

from lmms_eval_mai import cli


class _Loader(yaml.CFullLoader):
    """Reads lmms-eval's 2,000 task files with libyaml, at each start of a command: in 0.7 s, not in 4."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.name = getattr(stream, "name", "")  # lmms-eval finds the functions of a task beside its file


yaml.FullLoader = yaml.loader.FullLoader = _Loader  # type: ignore[misc, assignment]


def script(name: str) -> Any:
    """Return a console command."""
    return entry_points(group="console_scripts")[name].load()


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
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["lmms-eval", *arguments])
        sys.exit(script("lmms-eval")())
    return int(ended.value.code or 0), "".join(capsys.readouterr())
