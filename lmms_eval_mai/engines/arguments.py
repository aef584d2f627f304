"""Names and values of engine arguments: checks that all engines share. Imports no engine's library."""

import ast
import difflib
import functools
import importlib.util
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from lmms_eval_mai.errors import ArgumentError


def reject_unknown_arguments(
    side: str, given: Iterable[str], known: Collection[str], engine: str, suggestions: Collection[str] = ()
) -> None:
    """Refuse names that are not in `known`, and suggest near ones of `known` and `suggestions`. Raises
    `ArgumentError`."""
    for name in given:
        if name in known:
            continue
        near = difflib.get_close_matches(name, [*suggestions, *known], n=3)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        if name in ("model", "pretrained", "model_version"):
            hint = " There are two models here: small=... and large=..."
        raise ArgumentError(
            f"Unknown model argument {name!r}: neither mai_cascade nor the {engine} engine ({side}) has it."
            f"{hint} docs/arguments.md lists the arguments."
        )


def positive_int(name: str, value: Any) -> int:
    """Return `value` as a whole number of at least 1; lmms-eval may have read it as a float. Raises `ArgumentError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not float(value).is_integer() or value < 1:
        shown = f"{value:g}" if isinstance(value, float) else value
        raise ArgumentError(f"{name}={shown} is invalid: expected a whole number of at least 1.")
    return int(value)


@functools.cache
def vllm_argument_names() -> frozenset[str] | None:
    """Return the names of vLLM's engine arguments, read from its source.

    None: vLLM is not installed, or its source does not look as expected; names are then not checked. Importing vLLM
    takes seconds, and a typo must be refused before that.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        return None
    try:
        tree = ast.parse((Path(spec.origin).parent / "engine" / "arg_utils.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return None
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if not {"EngineArgs", "AsyncEngineArgs"} <= classes.keys():
        return None
    return frozenset(
        field.target.id
        for name in ("EngineArgs", "AsyncEngineArgs")
        for field in classes[name].body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    )
