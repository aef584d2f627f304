"""What can go wrong, as sentences.

    MaiError
    ├── ArgumentError        a model argument is unknown or has a value that cannot work
    ├── EngineUnavailable    the engine cannot run on this machine (package or device missing)
    ├── EngineStartError     the engine could not be built or started
    ├── EngineDied           the engine is gone; raised for every call in flight
    ├── JournalError         the journal cannot be read or written
    ├── TooManyErrors        more samples failed than `max_errors` allows
    └── SampleError          one sample cannot be answered; the engine and the other samples are fine
        ├── PromptTooLong    a prompt does not fit the model's context
        ├── UnreadableImage  an image cannot be decoded or prepared
        ├── CallTimeout      a call took longer than `call_timeout`
        ├── KilledEngine     a call that the engine died of, and of no other
        └── MissingAnswer    a scripted engine has no recorded answer for a call

Every message says what happened, with which value, and what to do. No message holds a secret: `redacted`.
"""

from collections.abc import Mapping
from typing import Any


class MaiError(Exception):
    """Base of all errors of this package."""


class ArgumentError(MaiError, ValueError):
    """Raised when a model argument is unknown or has a value that cannot work."""


class EngineUnavailable(MaiError):
    """Raised when an engine cannot run on this machine, before anything is started."""


class EngineStartError(MaiError):
    """Raised when an engine could not be configured or started."""


class EngineDied(MaiError):
    """Raised for every call in flight when an engine is gone."""


class JournalError(MaiError):
    """Raised when the journal cannot be read or written."""


class TooManyErrors(MaiError):
    """Raised at the end of a run in which more samples failed than `max_errors` allows."""


class SampleError(MaiError):
    """Raised when one sample cannot be answered."""


class PromptTooLong(SampleError):
    """Raised when a prompt does not fit the model's context."""


class UnreadableImage(SampleError):
    """Raised when an image cannot be decoded or prepared for the model."""


class CallTimeout(SampleError):
    """Raised when a call took longer than `call_timeout`; the engine has dropped it."""


class KilledEngine(SampleError):
    """Raised when the engine died of one call, again and again, and of no other."""


class MissingAnswer(SampleError):
    """Raised when a scripted engine has no recorded answer for a call."""


def one_line(text: str) -> str:
    """What a library says, in one line of at most 400 characters."""
    line = " ".join(text.split())
    return line if len(line) <= 400 else line[:400] + "..."


SECRET = ("key", "token", "secret", "password", "authorization", "credential", "headers")


def redacted(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without their secrets, as they may be printed and stored. A name that only counts tokens
    (`max_num_batched_tokens`) is none."""
    return {name: "<redacted>" if _secret(name) else _redacted(value) for name, value in arguments.items()}


def _redacted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return redacted(value)
    if isinstance(value, list | tuple):
        return [_redacted(one) for one in value]
    if isinstance(value, str) and "=" in value and _secret(value.split("=")[0]):
        return value.split("=")[0] + "=<redacted>"
    return value


def _secret(name: str) -> bool:
    lower = str(name).lower()
    return any(word in lower for word in SECRET) and not lower.endswith("tokens") and "token_id" not in lower
