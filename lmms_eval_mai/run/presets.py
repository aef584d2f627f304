"""Named pairs: `pair=<name>` is short for the arguments in pairs/<name>.yaml, and `pair=<path>.yaml` for those in a
file of the user. Arguments that the user gives as well override them.

A preset is a flat YAML mapping of model arguments. Its `small` and `large` are Hugging Face names, or paths that begin
with `./`, relative to the folder of the file; so are files of `min_confidence` and `method`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.user_input import path_of, read_yaml

FOLDER = Path(__file__).resolve().parents[1] / "pairs"
DEFAULT = "qwen3vl-2b-8b"


def load(pair: Any) -> Mapping[str, Any]:
    """Return the arguments of a pair. `pair`: a name, or the path of a YAML file. Raises `ArgumentError`."""
    is_path = str(pair).endswith((".yaml", ".yml"))
    path = path_of(str(pair)) if is_path else FOLDER / f"{pair}.yaml"
    if not is_path and not path.is_file():
        known = sorted(path.stem for path in FOLDER.glob("*.yaml"))
        raise ArgumentError(
            f"pair={pair} is unknown: choose one of {', '.join(known)}, give the path of a YAML file, or give "
            f"small=NAME and large=NAME.{did_you_mean(str(pair), known)}"
        )
    content = read_yaml(f"pair={pair}", path)
    for side in SIDES:
        if not isinstance(content, dict) or not isinstance(content.get(side), str):
            raise ArgumentError(
                f"pair={pair}: {path} must be a mapping of model arguments, in which {side!r} is the name or the path "
                "of a model."
            )
    models = {side: content[side] for side in SIDES}
    preset = {str(name): _as_in_model_args(value) for name, value in content.items()} | models
    for name in (*SIDES, "min_confidence", "method"):
        if str(preset.get(name, "")).startswith("./"):
            preset[name] = str(path.parent.absolute() / preset[name])
    return preset


def _as_in_model_args(value: Any) -> Any:
    """Return a value of the file as lmms-eval passes one of the command: a nested value as text, the text "8" as a
    number. A text that a number would not give back, such as "007", stays a text."""
    if isinstance(value, dict | list):
        return json.dumps(value, default=str)
    if value is None or isinstance(value, int | float):
        return value
    text = str(value)
    try:
        number = int(text) if text.isnumeric() else float(text)
    except ValueError:
        return {"true": True, "false": False}.get(text.lower(), text)
    return number if str(number) == text else text
