"""The arguments of `--model mai_cascade`, for README.md and docs/arguments.md, read from the code.

A field's docstring is its meaning. The source is parsed and not imported, so no engine's library is needed.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lmms_eval_mai"
WIDTH = 120

RUN = ("run/config.py", "Config")
"""The file and the class with the arguments of a run. `small` and `large` are groups of arguments, and `calibration` is
a file."""
GROUPS = ("small", "large", "calibration")

MODELS = (
    ("pair", "A named pair, or a YAML file of your own with `small` and `large`."),
    ("small", "The small model: a Hugging Face name, a folder, or the address of a server."),
    ("large", "The large model."),
)
"""The first rows of the list in README.md, which are no fields of the class."""

SHORT = (
    "method",
    "think",
    "max_open_samples",
    "max_new_tokens",
    "max_errors",
    "store",
)
"""The arguments of a run that README.md lists."""


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
        if not isinstance(following, ast.Expr) or not isinstance(following.value, ast.Constant):
            raise ValueError(f"{file}: {name}.{node.target.id} has no docstring, and the documentation needs one.")
        default = "None" if node.value is None else ast.unparse(node.value)
        arguments.append(Argument(node.target.id, default, " ".join(str(following.value.value).split())))
    return arguments


def run_arguments() -> list[Argument]:
    """Return the arguments of a run, in the order of the code."""
    return fields(*RUN)


def print_table(arguments: list[Argument]) -> None:
    """Print the arguments as a table."""
    print("| argument | default | meaning |\n|---|---|---|")
    for argument in arguments:
        print(f"| `{argument.name}` | {argument.shown_default} | {_linked(argument.meaning, '')} |")


def print_run_arguments() -> None:
    """Print all arguments of a run."""
    print_table(run_arguments())


def print_engine_arguments(engine: str) -> None:
    """Print all arguments of an engine that is part of this package: `openai`, `transformers` or `scripted`."""
    print_table(fields(*ENGINES[engine]))


ENGINES = {
    "openai": ("engines/openai/options.py", "OpenAIOptions"),
    "transformers": ("engines/transformers/options.py", "TransformersOptions"),
    "scripted": ("engines/scripted/engine.py", "ScriptedOptions"),
}


def print_short_table() -> None:
    """Print `MODELS`, and the arguments of `SHORT` with the first sentences of their meanings that fit the line."""
    found = {argument.name: argument for argument in run_arguments()}
    print("| argument | default | meaning |\n|---|---|---|")
    for name, meaning in MODELS:
        print(f"| `{name}` | {f'`{_default_pair()}`' if name == 'pair' else 'those of the pair'} | {meaning} |")
    for name in SHORT:
        start = f"| `{name}` | {found[name].shown_default} | "
        print(f"{start}{_linked(_first_sentences(found[name].meaning, WIDTH - len(start) - 2), 'docs/')} |")


def _linked(text: str, folder: str) -> str:
    """Return the text with links to the pages that it names. `folder`: of the pages, from the page with the text."""
    return re.sub(r"\bdocs/([\w-]+)\.md", rf"[\1]({folder}\1.md)", text)


def _first_sentences(text: str, width: int) -> str:
    """Return as many whole sentences of `text` as fit. Raises `ValueError` if not even the first one fits."""
    sentences = text.replace(". ", ".\n").split("\n")
    if len(sentences[0]) > width:
        raise ValueError(f"The first sentence is longer than {width} characters: {sentences[0]}")
    while len(" ".join(sentences)) > width:
        sentences.pop()
    return " ".join(sentences)


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
    tree = ast.parse((PACKAGE / "run" / "presets.py").read_text(encoding="utf-8"))
    values = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DEFAULT"
    ]
    return str(ast.literal_eval(values[0]))
