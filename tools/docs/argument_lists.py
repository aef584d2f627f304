"""The arguments of `--model mai_cascade`, for docs/arguments.md, read from the code.

A field's docstring is its meaning. The source is parsed and not imported, so no engine's library is needed.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lmms_eval_mai"

RUN = ("run/config.py", "Config")
"""The file and the class with the arguments of a run. `small` and `large` are groups of arguments, and `calibration` is
a file."""
GROUPS = ("small", "large", "calibration")
SHARED = {"AgreementRules": "method/agreement.py"}
"""A class whose default value and docstring an argument of a run has (`argument: ... = Class.argument`) -> its file."""


@dataclass(frozen=True)
class Argument:
    """One argument: its name, its default as Python text, and its meaning."""

    name: str
    default: str
    meaning: str

    @property
    def shown_default(self) -> str:
        """Return the default as a user writes it; empty if the meaning must tell it."""
        if self.default.isidentifier() and self.default.isupper():  # a named constant, such as MAI
            return f"`{self.default.lower()}`"
        value = ast.literal_eval(self.default)
        if value is None:
            return ""
        if isinstance(value, bool):
            return f"`{str(value).lower()}`"
        return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def fields(file: str, name: str) -> list[Argument]:
    """Return the fields of a class with their docstrings. Raises `ValueError` if a field has no docstring."""
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    arguments = []
    for node, following in zip(found.body, [*found.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.target.id in GROUPS:
            continue
        default = "None" if node.value is None else ast.unparse(node.value)
        owner, _, attribute = default.partition(".")
        if owner in SHARED:
            arguments += [field for field in fields(SHARED[owner], owner) if field.name == attribute]
            continue
        if not isinstance(following, ast.Expr) or not isinstance(following.value, ast.Constant):
            raise ValueError(f"{file}: {name}.{node.target.id} has no docstring, and the documentation needs one.")
        arguments.append(Argument(node.target.id, default, " ".join(str(following.value.value).split())))
    return arguments


def run_arguments() -> list[Argument]:
    """Return the arguments of a run, in the order of the code."""
    return fields(*RUN)


def print_table(arguments: list[Argument]) -> None:
    """Print the arguments as a table."""
    print("| argument | default | meaning |\n|---|---|---|")
    for argument in arguments:
        print(f"| `{argument.name}` | {argument.shown_default} | {_linked(argument.meaning)} |")


def print_run_arguments() -> None:
    """Print all arguments of a run."""
    print_table(run_arguments())


def print_engine_arguments(engine: str) -> None:
    """Print all arguments of an engine that is part of this package: `openai` or `transformers`."""
    print_table(fields(*ENGINES[engine]))


ENGINES = {
    "openai": ("engines/openai/engine.py", "OpenAIOptions"),
    "transformers": ("engines/transformers/options.py", "TransformersOptions"),
}


def _linked(text: str) -> str:
    """Return the text with links to the pages that it names."""
    return re.sub(r"\bdocs/([\w-]+)\.md", r"[\1](\1.md)", text)


def print_pairs() -> None:
    """Print the named pairs with their models. The first comment of a pair's file describes it."""
    default = _default_pair()
    print("| pair | small | large | use |\n|---|---|---|---|")
    for path in sorted((PACKAGE / "pairs").glob("*.yaml"), key=lambda path: (path.stem != default, path.stem)):
        text = path.read_text(encoding="utf-8")
        pair = yaml.safe_load(text)
        comment = []
        for line in text.splitlines():
            if not line.startswith("# "):
                break
            comment.append(line[2:])
        mark = " (default)" if path.stem == default else ""
        print(f"| `{path.stem}`{mark} | `{pair['small']}` | `{pair['large']}` | {' '.join(comment)} |")


def _default_pair() -> str:
    tree = ast.parse((PACKAGE / "run" / "pairs.py").read_text(encoding="utf-8"))
    values = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DEFAULT"
    ]
    return str(ast.literal_eval(values[0]))
