"""Commands that earlier versions had."""

from typing import Any

import pytest
from support.own_command import run_command

from lmms_eval_mai.cli import COMMANDS, REMOVED


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_command_is_refused_with_what_to_use_instead(name: str, capsys: Any) -> None:
    code, text, error = run_command(capsys, name, "--anything", "x")
    assert (code, text) == (1, "") and name not in COMMANDS
    assert REMOVED[name] in error and "Traceback" not in error
