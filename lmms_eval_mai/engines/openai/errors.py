"""The arguments of the `openai` engine, and what its endpoints refuse in this package's errors and sentences."""

import dataclasses
import os
from typing import Any

from lmms_eval_mai.engines.base import Prompt
from lmms_eval_mai.engines.messages import is_too_long
from lmms_eval_mai.engines.openai.endpoints import Replicas, too_slow
from lmms_eval_mai.errors import ArgumentError, CallTimeout, EngineDied, MaiError, PromptTooLong, SampleError
from lmms_eval_mai.run.config import positive_int


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
                raise ArgumentError(f"{name}={value} cannot be: give a number of at least {least:g}.")
        for name in ("concurrency", "max_pixels"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, positive_int(name, value))


def failure(prompt: Prompt, where: str, model: str, options: OpenAIOptions, error: Any, replicas: Replicas) -> MaiError:
    """What is left of a request when asking again did not help. `where`: its addresses."""
    import openai

    side, why = prompt.key.side, replicas.why(error)
    window = f"{side}_retry_for={options.retry_for:g} s"
    status = getattr(error, "status_code", None)
    if too_slow(error):
        return CallTimeout(
            f"{prompt.key}: {where} did not answer within {side}_request_timeout={options.request_timeout:g} s. Raise "
            "it, or lower max_open_samples so that calls wait less."
        )
    if isinstance(error, openai.APIConnectionError):
        if error.others_answered:  # type: ignore[attr-defined]
            return SampleError(
                f"{prompt.key}: {where} breaks this request off for {window}, and answers others ({why})."
            )
        return EngineDied(f"The {side} engine {where} did not answer for {window} ({why}). Look whether it runs.")
    if status in (401, 403):
        return EngineDied(key_refused(where, options.api_key_env, why))
    if status == 404:
        return EngineDied(f"{where} no longer serves {model} ({why}).")
    if is_too_long(replicas.whole(error)) or "context_length" in str(getattr(error, "code", "")):
        return PromptTooLong(
            f"{prompt.key}: the prompt does not fit the context of {model} ({why}). Serve it with a longer one, or "
            f"shrink pictures with {side}_max_pixels=N."
        )
    if status is None or (status < 500 and status != 429):
        return SampleError(f"{prompt.key}: {where} refused the request ({why}).")
    return SampleError(f"{prompt.key}: {where} failed for {window} ({why}).")


def key_refused(where: str, variable: str, why: str) -> str:
    key = f"the key in {variable}" if os.environ.get(variable) else f"requests without a key: {variable} is not set"
    return f"{where} refuses {key} ({why}). Set {variable} in the environment."
