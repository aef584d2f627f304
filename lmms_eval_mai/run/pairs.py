"""The two models of a run and their engines, from its arguments and from the file of a pair.

`pair=<name>` is short for the arguments in pairs/<name>.yaml, and `pair=<path>.yaml` for those in a file of the user.
Arguments that the user gives as well override them. The file is a flat YAML mapping of model arguments. Its `small` and
`large` are Hugging Face names, or paths that begin with `./`, relative to the folder of the file; so are files of
`min_confidence` and `method`.
"""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lmms_eval_mai.contract import SIDES, EngineConfig, Side
from lmms_eval_mai.engines.arguments import did_you_mean, parse_literal
from lmms_eval_mai.engines.build import ENGINES
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.redaction import without_password
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
    arguments = {str(name): _as_in_model_args(value) for name, value in content.items()} | models
    for name in (*SIDES, "min_confidence", "method"):
        if str(arguments.get(name, "")).startswith("./"):
            arguments[name] = str(path.parent.absolute() / arguments[name])
    return arguments


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


def engine_config(
    side: Side, from_pair: Mapping[str, Any], arguments: Mapping[str, Any], run_arguments: Collection[str]
) -> EngineConfig:
    """Return the engine of a model with its arguments: all but `run_arguments`. `from_pair`: those of
    the pair's file, which are for the engine that the file names. Raises `ArgumentError`."""
    given = {**from_pair, **arguments}
    (chosen_by, engine), model = _engine_of(side, given), given.get(side)
    _check_model(side, model, engine, chosen_by)
    not_of_engine = {*run_arguments, *SIDES, "engine", f"{side}_engine"}
    options = {}
    usable = given if engine == _engine_of(side, from_pair)[1] else arguments
    # A side's own argument comes last, so it wins over the argument for both.
    for name, value in sorted(usable.items(), key=lambda item: item[0].startswith(f"{side}_")):
        if name not in not_of_engine and not name.startswith("large_" if side == "small" else "small_"):
            try:
                options[name.removeprefix(f"{side}_")] = parse_literal(value)
            except ValueError as error:
                raise ArgumentError(f"{name} is invalid: {error}.") from None
    if model is None:
        model = load(DEFAULT)[side] if engine in ("vllm", "transformers") else ""
    return EngineConfig(side, engine, str(model), options)


def _engine_of(side: Side, given: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the argument that chooses an engine, and this engine: `<side>_engine`, else "openai" if the model is an
    address, else `engine`, else "vllm"."""
    if (engine := given.get(f"{side}_engine")) is not None:
        return f"{side}_engine", engine
    return "engine", "openai" if _is_address(given.get(side)) else given.get("engine") or "vllm"


def _is_address(model: Any) -> bool:
    return str(model).lstrip("[ \"'").lower().startswith(("http://", "https://"))


def _check_model(side: Side, model: Any, engine: Any, chosen_by: str) -> None:
    """Refuse an unknown engine, and a model that is not one for this engine."""
    if re.match(r"[\w.-]+:\d+(/|$)", str(model)):
        raise ArgumentError(f"{side}={model} looks like an address without its beginning. Give {side}=http://{model}.")
    if engine not in ENGINES:
        raise ArgumentError(f"{chosen_by}={engine} is unknown: choose one of {', '.join(ENGINES)}.")
    shown = without_password(str(model))
    if _is_address(model) and engine != "openai":
        raise ArgumentError(
            f"{side}={shown} is the address of an endpoint, but {chosen_by}={engine} is given. Leave {chosen_by} out."
        )
    if engine == "openai" and model is not None and not _is_address(model):
        raise ArgumentError(
            f"{chosen_by}=openai needs the address of an endpoint, and {side}={shown} is not one. Give "
            f"{side}=http://HOST:PORT/v1."
        )
