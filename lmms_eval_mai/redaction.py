"""Hides secrets in arguments and shortens messages of other libraries."""

import re
from collections.abc import Mapping
from typing import Any

SECRET = re.compile(r"(^|[_-])(key|token|password|secret)$|authorization|headers|credential", re.IGNORECASE)
"""Names of arguments whose values may be secrets. `tokenizer` and `max_num_batched_tokens` are not among them."""


def one_line(text: str) -> str:
    """Return the text as one line of at most 400 characters."""
    line = " ".join(text.split())
    return line if len(line) <= 400 else line[:397] + "..."


def error_text(error: BaseException) -> str:
    """Return the error's message as one line, or the error's type if it has no message."""
    return one_line(str(error)) or type(error).__name__


def without_password(address: str) -> str:
    """Return an address (or a list of addresses) without the user name and the password that it may contain."""
    return re.sub(r"//[^/@\s]*@", "//<redacted>@", address)


def redacted(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without their secrets, so that they can be printed and stored."""
    return {name: "<redacted>" if _is_secret(name) else _redacted_value(value) for name, value in arguments.items()}


def _redacted_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return redacted(value)
    if isinstance(value, list | tuple):
        return [_redacted_value(item) for item in value]
    if isinstance(value, str) and "=" in value and _is_secret(value.split("=")[0]):
        return value.split("=")[0] + "=<redacted>"
    return value


def _is_secret(name: str) -> bool:
    return SECRET.search(str(name)) is not None
