"""The arguments of the `openai` engine, and what its endpoints refuse in this package's errors and sentences."""

import os
from typing import Any

from lmms_eval_mai.engines.base import Prompt
from lmms_eval_mai.engines.messages import is_too_long
from lmms_eval_mai.engines.openai.endpoints import EndpointPool, is_timeout
from lmms_eval_mai.engines.openai.options import OpenAIOptions
from lmms_eval_mai.errors import CallTimeout, EngineCrashed, MaiError, PromptTooLong, SampleError


def to_mai_error(
    prompt: Prompt, where: str, model: str, options: OpenAIOptions, error: Any, replicas: EndpointPool
) -> MaiError:
    """What is left of a request when asking again did not help. `where`: its addresses."""
    import openai

    side, why = prompt.key.side, replicas.why(error)
    window = f"{side}_retry_for={options.retry_for:g} s"
    status = getattr(error, "status_code", None)
    if is_timeout(error):
        return CallTimeout(
            f"{prompt.key}: {where} did not answer within {side}_request_timeout={options.request_timeout:g} s. Raise "
            "it, or lower max_open_samples so that calls wait less."
        )
    if isinstance(error, openai.APIConnectionError):
        if error.others_answered:  # type: ignore[attr-defined]
            return SampleError(
                f"{prompt.key}: {where} breaks this request off for {window}, and answers others ({why})."
            )
        return EngineCrashed(f"The {side} engine {where} did not answer for {window} ({why}). Look whether it runs.")
    if status in (401, 403):
        return EngineCrashed(auth_error_text(where, options.api_key_env, why))
    if status == 404:
        return EngineCrashed(f"{where} no longer serves {model} ({why}).")
    if is_too_long(replicas.whole(error)) or "context_length" in str(getattr(error, "code", "")):
        return PromptTooLong(
            f"{prompt.key}: the prompt does not fit the context of {model} ({why}). Serve it with a longer one, or "
            f"shrink pictures with {side}_max_pixels=N."
        )
    if status is None or (status < 500 and status != 429):
        return SampleError(f"{prompt.key}: {where} refused the request ({why}).")
    return SampleError(f"{prompt.key}: {where} failed for {window} ({why}).")


def auth_error_text(where: str, variable: str, why: str) -> str:
    key = f"the key in {variable}" if os.environ.get(variable) else f"requests without a key: {variable} is not set"
    return f"{where} refuses {key} ({why}). Set {variable} in the environment."
