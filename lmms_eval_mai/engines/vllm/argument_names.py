"""Reads the names of vLLM's engine arguments from its source.

Importing vLLM takes seconds, and a typo must be refused before that.
"""

import ast
import functools
import importlib.util
from pathlib import Path

OWN_ARGUMENTS = frozenset({"devices", "renderer_processes"})
"""Arguments of this engine that vLLM does not have."""


@functools.cache
def vllm_argument_names() -> frozenset[str] | None:
    """Return the names of vLLM's engine arguments.

    None: vLLM is not installed, or its source does not look as expected. Names are then not checked.
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
