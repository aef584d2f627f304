"""The arguments of the `openai` engine."""

import dataclasses

from lmms_eval_mai.engines.arguments import positive_int
from lmms_eval_mai.errors import ArgumentError

PERFORMANCE_ARGUMENTS = {"api_key_env", "retry_for", "request_timeout", "concurrency"}
"""Arguments that cannot change an answer: a resumed run may have other values."""


@dataclasses.dataclass(frozen=True)
class OpenAIOptions:
    """Arguments of the engine, `small_<name>` / `large_<name>` / `<name>` for both."""

    model: str | None = None
    """The name under which the endpoint serves the model; needed only where it serves several."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key. A key is never an argument: lmms-eval prints those."""
    retry_for: float = 120.0
    """Seconds for which a call that fails is asked again, and for which an endpoint is waited for at the start."""
    request_timeout: float = 600.0
    """Seconds for one answer."""
    concurrency: int = 256
    """Requests at once to each endpoint."""
    max_pixels: int | None = None
    """Larger pictures are shrunk to it before they are sent."""

    def __post_init__(self) -> None:
        for name, least in (("retry_for", 0), ("request_timeout", 0.001)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
                raise ArgumentError(f"{name}={value} is invalid: expected a number of at least {least:g}.")
        for name in ("concurrency", "max_pixels"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, positive_int(name, value))
