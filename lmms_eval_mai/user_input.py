"""Reads what a user writes: paths, YAML files, and texts `NAME=VALUE,...`. A name may be given once."""

import itertools
import re
import tempfile
from pathlib import Path
from typing import Any

import yaml

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.redaction import redacted


def make_writable(folder: Path) -> None:
    """Make a folder, and a file in it that is removed at once. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses a key that a mapping has twice, of which YAML keeps the last one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        keys = [key.value for key, _ in node.value]
        for number, (key, _) in enumerate(node.value):
            if key.value in keys[:number]:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
        return super().construct_mapping(node, deep)


# YAML 1.1 reads 1e-1 and 1.0e5 as texts.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_yaml(argument: str, path: Path) -> Any:
    """Return the content of a YAML file, which is UTF-8 in every locale. `argument`: names it in a message. Raises
    `ArgumentError`."""
    try:
        return yaml.load(path.read_bytes(), _Loader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # ValueError: a date such as 2026-13-01
        raise ArgumentError(f"{argument} cannot be read ({' '.join(str(error).split())}).") from None


def path_of(text: Any, remedy: str = "give an absolute path") -> Path:
    """Return a path, with the user's home folder in place of `~`. Raises `ArgumentError` if that folder is unknown."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ArgumentError(f"The home folder in {text} is unknown. Set HOME, or {remedy}.") from None


def values_of(option: str, text: str) -> dict[str, Any]:
    """Parse an option's `NAME=VALUE,...` as lmms-eval does. Raises `ArgumentError`."""
    from lmms_eval.utils import simple_parse_args_string  # takes seconds

    # lmms-eval keeps the last value of a name. With a number before each name, it keeps all.
    numbers = itertools.count()
    numbered = re.sub("(^|,)(?=[^,=]+=)", lambda start: f"{start[0]}{next(numbers)} ", text.strip())
    try:
        values: dict[str, Any] = simple_parse_args_string(text)
        pairs = [(name.partition(" ")[2].strip(), value) for name, value in simple_parse_args_string(numbered).items()]
    except ValueError:
        raise ArgumentError(f"{option} must be NAME=VALUE,NAME=VALUE: a part of it has no '='.") from None
    for (name, first), (other, second) in itertools.combinations(pairs, 2):
        if name == other:
            first, second = (redacted({name: value})[name] for value in (first, second))
            raise ArgumentError(f"{option} has {name}={first} and {name}={second}. Leave one of them out.")
    return values
