"""Whether new processes can run the user's script again, in processes that Python starts in all its ways."""

import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

CHECK = """
from lmms_eval_mai.engines.vllm.starting import refuse_script_from_stdin
from lmms_eval_mai.errors import EngineUnavailable
try:
    refuse_script_from_stdin()
    print("accepted")
except EngineUnavailable as error:
    print("refused:", error)

"""


def answer_of(options: list[str], stdin: str, folder: Path) -> str:
    """Return what Python prints, started with these options."""
    command = [sys.executable, *options]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True, cwd=folder).stdout


@pytest.mark.parametrize("options", [["-"], [], ["-u", "-", "argument"]])
def test_a_script_from_standard_input_is_refused_with_what_to_do(options: list[str], tmp_path: Path) -> None:
    answer = answer_of(options, CHECK, tmp_path)
    assert answer.startswith(
        "refused: vLLM starts its engines as new processes, which run the script again. Python reads"
    )
    assert 'Save it as a file that starts the engines under `if __name__ == "__main__":`' in answer


@pytest.mark.parametrize(
    ("options", "stdin"),
    [
        pytest.param(["script.py"], "", id="file"),
        pytest.param(["-m", "script"], "", id="module"),
        pytest.param(["-c", CHECK], "", id="command"),
        pytest.param(["-i", "-"], CHECK, id="interactive"),
    ],
)
def test_python_that_was_started_in_another_way_is_accepted(options: list[str], stdin: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CHECK)
    assert answer_of(options, stdin, tmp_path) == "accepted\n"


def test_a_notebook_is_accepted(tmp_path: Path) -> None:
    cell = nbformat.v4.new_code_cell(CHECK)
    notebook = nbformat.v4.new_notebook(cells=[cell])
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3", resources=resources).execute()
    assert cell.outputs[0]["text"] == "accepted\n"
