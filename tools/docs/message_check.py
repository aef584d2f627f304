"""Checks that the messages in docs/troubleshooting.md exist in the code.

A message is a heading in code style: ### `the message, with ... in place of values`.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VALUE = "\0"
"""Stands for the value of a placeholder in a message of the code."""


def check(page: str = "docs/troubleshooting.md") -> None:
    """Print nothing. Raises `ValueError` if a message of the page is in no file of the package."""
    texts = [text for path in (ROOT / "lmms_eval_mai").rglob("*.py") for text in _texts(path)]
    quoted = re.findall(r"^### `(.+)`$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    missing = [message for message in quoted if not any(_pattern(message).search(text) for text in texts)]
    if not quoted:
        raise ValueError(f"{page} has no heading of the form ### `message`.")
    if missing:
        raise ValueError(f"{page} has messages that no file of lmms_eval_mai contains: {missing}")


def _texts(path: Path) -> list[str]:
    """Return all texts of a file, with `VALUE` for each placeholder."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else VALUE for part in node.values]
            found.append("".join(str(part) for part in parts))
    return found


def _pattern(message: str) -> re.Pattern[str]:
    """Return a pattern in which `...` stands for a value and the text around it."""
    return re.compile(".*".join(re.escape(part) for part in message.split("...")), re.DOTALL)
