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
    """Name under which the endpoint serves the model. Needed only if the endpoint serves several models."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable with the key. The key itself is never an argument, because lmms-eval prints arguments."""
    retry_for: float = 120.0
    """A failed request is retried until this many seconds after its first failure. When the run starts, also the
    seconds to wait until an endpoint answers."""
    request_timeout: float = 600.0
    """Seconds that one request may take. A request that takes longer is not retried."""
    concurrency: int = 256
    """Largest number of open requests per endpoint."""
    max_pixels: int | None = None
    """Larger images are made smaller before they are sent."""

    def __post_init__(self) -> None:
        for name, least in (("retry_for", 0), ("request_timeout", 0.001)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
                raise ArgumentError(f"{name}={value} is invalid: expected a number of at least {least:g}.")
        for name in ("concurrency", "max_pixels"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, positive_int(name, value))
