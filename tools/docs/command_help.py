"""The help of `lmms-eval-mai` and its commands, for docs/cli.md: printed by the commands themselves."""

import contextlib
import io
import os
import re
import sys
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]


def help_text(*command: str) -> str:
    """Return what `lmms-eval-mai COMMAND --help` prints on a terminal of 100 columns."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))  # this checkout, not an installed package
    from lmms_eval_mai.cli import main

    output = io.StringIO()
    terminal = {"COLUMNS": "100", "NO_COLOR": "1"}
    with (
        mock.patch.dict(os.environ, terminal),
        contextlib.redirect_stdout(output),
        contextlib.suppress(SystemExit),
    ):
        main([*command, "--help"])
    return output.getvalue().strip()


def commands() -> list[str]:
    """Return the names of the commands, in the order of the help."""
    found = re.search(r"\{([\w,-]+)\}", help_text())
    if found is None:
        raise ValueError("`lmms-eval-mai --help` lists no commands.")
    return found.group(1).split(",")


def print_all() -> None:
    """Print the help of the program and of each command as Markdown."""
    for name in ("", *commands()):
        title = f"lmms-eval-mai {name}".strip()
        print(f"\n## `{title}`\n\n```text\n{help_text(*name.split())}\n```")
