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


def run(code: str, *arguments: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_public_names_are_all_errors_and_six_others_and_all_exist() -> None:
    assert set(lmms_eval_mai.__all__) == PUBLIC and len(lmms_eval_mai.__all__) == len(PUBLIC)
    assert all(hasattr(lmms_eval_mai, name) and name in dir(lmms_eval_mai) for name in PUBLIC)
    assert all(issubclass(error, lmms_eval_mai.MaiError) for error in ERRORS.values())
    assert all(name in str(errors.__doc__) for name in ERRORS)
    with pytest.raises(AttributeError, match="has no attribute 'Ensemble'"):
        _ = lmms_eval_mai.Ensemble


def test_import_of_the_package_imports_nothing_heavy_and_that_of_cascade_no_engine() -> None:
    assert run(f"import sys, lmms_eval_mai; print([name for name in {HEAVY} if name in sys.modules])") == ["[]"]
    engines = ("vllm", "aiohttp", "lmms_eval.evaluator", "lmms_eval.tasks")
    code = f"import sys; from lmms_eval_mai import Cascade; print([name for name in {engines} if name in sys.modules])"
    assert run(code) == ["[]"]


HELP = """
import sys
from lmms_eval_mai.cli import main
try:
    main([sys.argv[1], "--help"])
except SystemExit:
    print(*{"torch", "pandas", "transformers", "lmms_eval.tasks", "vllm"} & set(sys.modules))
"""


@pytest.mark.parametrize("command", ["doctor", "ask", "compare", "calibrate", "serve"])
def test_help_imports_nothing_slow(command: str) -> None:
    first, *_, imported = run(HELP, command)
    assert first.startswith(f"usage: lmms-eval-mai {command}") and not imported


def test_public_parse_names_a_typo_without_importing_an_engines_library() -> None:
    lines = run(
        "import sys, lmms_eval_mai\n"
        "for given in ({'engine': 'transformers', 'asistant_model': 'a'},\n"
        "              {'small': 'http://a/v1', 'large': 'http://a/v1', 'retries': 8}):\n"
        "    try:\n"
        "        lmms_eval_mai.parse(given)\n"
        "    except lmms_eval_mai.ArgumentError as error:\n"
        "        print(str(error).split(':')[0])\n"
        "print([name for name in ('torch', 'vllm', 'transformers', 'openai') if name in sys.modules])\n"
    )
    assert [line.split()[-1] for line in lines[:-1]] == ["'asistant_model'", "'retries'"]
    assert lines[-1] == "[]"


def test_version_is_that_of_the_project_and_printed_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE) == [
        lmms_eval_mai.__version__
    ]
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"lmms-eval-mai {lmms_eval_mai.__version__}\n"
