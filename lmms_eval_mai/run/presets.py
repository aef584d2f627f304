"""Named pairs: `pair=<name>` stands for the arguments in pairs/<name>.yaml, `pair=<path>.yaml` for those of a file of
the user's. Arguments beside it win.

A preset is a flat YAML mapping of model arguments for both sides; `small` and `large` are Hugging Face names, or begin
with `./` and are folders beside the file.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lmms_eval_mai.errors import ArgumentError

FOLDER = Path(__file__).resolve().parents[1] / "pairs"
DEFAULT = "qwen3vl-2b-8b"


def names() -> list[str]:
    """The pairs that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(pair: Any) -> Mapping[str, Any]:
    """The arguments that `pair` stands for: the name of one of ours, or the path of a YAML file. Raises
    `ArgumentError`."""
    path = Path(str(pair)).expanduser() if str(pair).endswith((".yaml", ".yml")) else FOLDER / f"{pair}.yaml"
    if not path.is_file():
        raise ArgumentError(
            f"pair={pair} is unknown: choose one of {', '.join(names())}, give the path of a YAML file, or give "
            "small=... and large=..."
        )
    preset = _read(pair, path)
    for side in ("small", "large"):
        if preset[side].startswith("./"):
            folder = path.parent / preset[side]
            if not (folder / "config.json").is_file():
                raise ArgumentError(
                    f"The checkpoint of pair={pair} is missing from {folder}: install lmms-eval-mai again, or make the "
                    "pair with tools/train_demo_pair.py and give small=... and large=..."
                )
            preset[side] = str(folder)
    return preset


def _read(pair: Any, path: Path) -> dict[str, Any]:
    try:
        preset = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ArgumentError(f"pair={pair}: {path} cannot be read ({' '.join(str(error).split())}).") from None
    if not isinstance(preset, dict) or not all(isinstance(preset.get(side), str) for side in ("small", "large")):
        raise ArgumentError(f"pair={pair}: {path} must be a mapping of model arguments with `small` and `large`.")
    return {
        name: json.dumps(value) if isinstance(value, (dict, list)) else value for name, value in preset.items()
    }  # as lmms-eval hands arguments over
