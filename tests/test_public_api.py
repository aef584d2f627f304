"""The public names, the version, and what `import lmms_eval_mai` costs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import lmms_eval_mai
from lmms_eval_mai import cli, errors

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "vllm", "transformers", "datasets", "lmms_eval", "PIL", "numpy", "aiohttp", "yaml", "loguru", "tqdm")

ERRORS = {name: error for name, error in vars(errors).items() if isinstance(error, type)}
PUBLIC = ERRORS.keys() | {"Cascade", "Config", "MaiCascade", "__version__", "parse", "task_dir"}
COMMANDS = ("doctor", "ask", "compare", "calibrate", "serve")
HELP = "from lmms_eval_mai.cli import main\ntry: main(['{}', '--help'])\nexcept SystemExit: pass"
PARSE = """
given = {'small': 'http://a/v1', 'small_retry_for': 8, 'large': 'a/b', 'large_engine': 'transformers', 'large_dtype': 1}
import lmms_eval_mai; lmms_eval_mai.parse(given)
"""


def test_public_names_are_all_errors_and_six_others_and_all_exist() -> None:
    assert set(lmms_eval_mai.__all__) == PUBLIC and len(lmms_eval_mai.__all__) == len(PUBLIC)
    assert all(hasattr(lmms_eval_mai, name) and name in dir(lmms_eval_mai) for name in PUBLIC)
    assert all(issubclass(error, lmms_eval_mai.MaiError) for error in ERRORS.values())
    assert all(name in str(errors.__doc__) for name in ERRORS)
    with pytest.raises(AttributeError, match="has no attribute 'Ensemble'"):
        _ = lmms_eval_mai.Ensemble


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import lmms_eval_mai", HEAVY),
        ("from lmms_eval_mai import Cascade", ("vllm", "aiohttp", "lmms_eval.evaluator", "lmms_eval.tasks")),
        (PARSE, ("torch", "vllm", "transformers", "openai")),
        *((HELP.format(name), ("torch", "pandas", "transformers", "lmms_eval.tasks", "vllm")) for name in COMMANDS),
    ],
)
def test_imports_arguments_and_help_import_nothing_heavy(code: str, absent: tuple[str, ...]) -> None:
    code += f"\nimport sys; print([name for name in {absent} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, *_, found = done.stdout.splitlines() * 2
    assert found == "[]" and first.startswith(("usage: lmms-eval-mai ", "[]"))


def test_version_is_that_of_the_project_and_printed_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE) == [
        lmms_eval_mai.__version__
    ]
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"lmms-eval-mai {lmms_eval_mai.__version__}\n"
