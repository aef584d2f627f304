"""Experiments import public names. `make lint` checks that the package imports no experiment."""

import ast
from collections.abc import Iterator
from pathlib import Path

import lmms_eval_mai

ROOT = Path(__file__).resolve().parents[2]
METHOD = "lmms_eval_mai.method"
"""The method, which is documented equation by equation."""
NOT_PUBLIC = {
    "attention": {"lmms_eval_mai.contract"},
    "promise": {
        "lmms_eval_mai.analysis",
        "lmms_eval_mai.analysis.threshold",
        "lmms_eval_mai.analysis.runs.runs",
    },  # what it tests
    "latency": {
        "lmms_eval_mai.contract",
        "lmms_eval_mai.analysis",  # `read` is public; the numbers of the paper
        "lmms_eval_mai.run.engines",
        "lmms_eval_mai.run.evaluation",
    },  # a planned run goes through the scheduler of a real one
    "ray": {"lmms_eval_mai.serve", "lmms_eval_mai.serve.app", "lmms_eval_mai.serve.service"},
}
"""Experiment -> the other modules that it imports."""


def imports(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each import in a file. The name is empty if the module itself is imported."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)


def test_experiments_import_public_names_and_the_method() -> None:
    found = 0
    for file in (ROOT / "experiments").glob("*/*.py"):
        for module, name in imports(file):
            if module.partition(".")[0] != "lmms_eval_mai":
                continue
            found += 1
            is_public = module == "lmms_eval_mai" and (name in lmms_eval_mai.__all__ or f"{module}.{name}" == METHOD)
            is_allowed = f"{module}.".startswith(f"{METHOD}.") or module in NOT_PUBLIC.get(file.parent.name, ())
            assert is_public or is_allowed, f"{file.name} imports {name} of {module}"
    assert found > 5
