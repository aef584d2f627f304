"""The examples of docs/scripted-engine.md run as printed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from support.command_line import read_samples
from support.processes import Command

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "scripted-engine.md").read_text()


def blocks(language: str) -> list[str]:
    """Return the code blocks of the page in a language; an empty text for blocks without one."""
    return [
        text for name, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if name == language
    ]


def test_the_command_of_the_page_gives_the_exit_that_the_page_names(command: type[Command], tmp_path: Path) -> None:
    for side, records in zip(("small", "large"), blocks("json"), strict=True):
        (tmp_path / f"{side}.jsonl").write_text(records)
    program, *arguments = shlex.split(blocks("bash")[0].replace("\\\n", ""))
    code, text = command(tmp_path, tmp_path / "log", *arguments).end()
    assert (program, code) == ("lmms-eval", 0), text[-3000:]
    (sample,) = read_samples(tmp_path / "out", "shapes_s")
    assert sample["token_counts"][0]["exit"] == "agree_think" and "the exit of document 0 is `agree_think`" in PAGE


def test_the_python_code_of_the_page_prints_what_the_page_shows() -> None:
    (code,), (output,) = blocks("python"), blocks("")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == output, done.stderr
