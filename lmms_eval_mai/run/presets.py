"""Named pairs: `pair=<name>` is short for the arguments in pairs/<name>.yaml, and `pair=<path>.yaml` for those in a
file of the user. Arguments that the user gives as well override them.

A preset is a flat YAML mapping of model arguments. Its `small` and `large` are Hugging Face names, or paths that begin
with `./`, relative to the folder of the file; so are files of `min_confidence` and `method`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.user_input import path_of, read_yaml

FOLDER = Path(__file__).resolve().parents[1] / "pairs"
DEFAULT = "qwen3vl-2b-8b"


def names() -> list[str]:
    """Return the names of the pairs that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(pair: Any) -> Mapping[str, Any]:
    """Return the arguments of a pair. `pair`: a name, or the path of a YAML file. Raises `ArgumentError`."""
    is_path = str(pair).endswith((".yaml", ".yml"))
    path = path_of(str(pair)) if is_path else FOLDER / f"{pair}.yaml"
    if is_path and not path.is_file():
        raise ArgumentError(f"pair={pair}: there is no such file.")
    if not path.is_file():
        raise ArgumentError(
            f"pair={pair} is unknown: choose one of {', '.join(names())}, give the path of a YAML file, or give "
            f"small=NAME and large=NAME.{did_you_mean(str(pair), names())}"
        )
    preset = _read(pair, path)
    for name in ("small", "large", "min_confidence", "method"):
        if str(preset.get(name, "")).startswith("./"):
            preset[name] = str(path.parent.absolute() / preset[name])
    return preset


def _read(pair: Any, path: Path) -> dict[str, Any]:
    preset = read_yaml(f"pair={pair}", path)
    if not isinstance(preset, dict):
        raise ArgumentError(f"pair={pair}: {path} must be a mapping of model arguments with `small` and `large`.")
    for side in ("small", "large"):
        if side not in preset:
            raise ArgumentError(f"pair={pair}: {path} has no {side!r} (it has: {', '.join(map(str, preset))}).")
        if not isinstance(preset[side], str):
            raise ArgumentError(f"pair={pair}: {side!r} in {path} must be the name or the path of a model.")
    models = {side: preset[side] for side in ("small", "large")}
    return {str(name): _as_in_model_args(value) for name, value in preset.items()} | models


def _as_in_model_args(value: Any) -> Any:
    """Return a value as lmms-eval's `handle_arg_string` does, whose import takes seconds: the text "8" as a number, and
    dates and nested values as text."""
    if isinstance(value, dict | list):
        return json.dumps(value, default=str)
    if value is None or isinstance(value, int | float):
        return value
    text = str(value)
    try:
        return int(text) if text.isnumeric() else float(text)
    except ValueError:
        return {"true": True, "false": False}.get(text.lower(), text)
