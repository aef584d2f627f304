"""Named pairs: `pair=<name>` stands for the arguments in pairs/<name>.yaml, and arguments beside it win.

A preset is a flat YAML mapping of model arguments for both sides; `small` and `large` are Hugging Face names, or begin
with `./` and are folders beside the file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lmms_eval_mai.errors import ArgumentError

FOLDER = Path(__file__).resolve().parent / "pairs"
DEFAULT = "qwen3vl-2b-8b"


def names() -> list[str]:
    """The pairs that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(pair: Any) -> Mapping[str, Any]:
    """The arguments that `pair` stands for: the name of one of ours. Raises `ArgumentError` for another."""
    if pair not in names():
        raise ArgumentError(
            f"pair={pair} is unknown: choose one of {', '.join(names())}, or give small=... and large=..."
        )
    preset: dict[str, Any] = yaml.safe_load((FOLDER / f"{pair}.yaml").read_text())
    for side in ("small", "large"):
        if preset[side].startswith("./"):
            folder = FOLDER / preset[side]
            if not (folder / "config.json").is_file():
                raise ArgumentError(
                    f"The checkpoint of pair={pair} is missing from {folder}: install lmms-eval-mai again, or make the "
                    "pair with tools/train_demo_pair.py and give small=... and large=..."
                )
            preset[side] = str(folder)
    return preset
