"""Converts errors of a request into errors of an engine."""

import os

from lmms_eval_mai.contract import Prompt
from lmms_eval_mai.engines.messages import is_too_long
from lmms_eval_mai.engines.openai.client import (
    ClientClosed,
    ConnectionFailed,
    RequestError,
    RequestTimeout,
    StatusError,
)
from lmms_eval_mai.engines.openai.endpoints import EndpointPool, RequestFailed
from lmms_eval_mai.engines.openai.options import OpenAIOptions
from lmms_eval_mai.errors import CallTimeout, EngineCrashed, EngineStartError, MaiError, PromptTooLong, SampleError


def to_mai_error(
    prompt: Prompt, address: str, model: str, options: OpenAIOptions, failure: RequestFailed, pool: EndpointPool
) -> MaiError:
    """Return the error of a request that failed finally. `address`: the argument with the addresses."""
    error, side = failure.error, prompt.key.side
    text = pool.error_text(error)
    window = f"{options.retry_for:g} s ({side}_retry_for)"
    if isinstance(error, RequestTimeout):
        return CallTimeout(
            f"{prompt.key}: {address} did not answer within {side}_request_timeout={options.request_timeout:g} s. "
            f"Raise {side}_request_timeout, or lower max_open_samples so that calls wait less."
        )
    if isinstance(error, ClientClosed):
        return EngineCrashed(f"The {side} engine {address} was closed during {prompt.key}.")
    if isinstance(error, ConnectionFailed):
        if failure.others_answered:
            return SampleError(
                f"{prompt.key}: {address} did not answer this request within {window}, but it answered other requests "
                f"({text}). Check the document, and the server's log."
            )
        return EngineCrashed(
            f"The {side} engine {address} did not answer within {window} ({text}). Check whether its server runs."
        )
    assert isinstance(error, StatusError)
    status = error.status
    if status in (401, 403):
        return EngineCrashed(auth_error_text(address, options.api_key_env, text))
    if status == 404:
        return EngineCrashed(
            f"{address} does not serve {model} any more ({text}). Start the server with this model again."
        )
    if is_too_long(pool.full_error_text(error)) or "context_length" in error.code:
        return PromptTooLong(
            f"{prompt.key}: the prompt does not fit the context of {model} ({text}). Serve {model} with a longer "
            f"context, or make images smaller with {side}_max_pixels=N."
        )
    if status < 500 and status != 429:
        return SampleError(
            f"{prompt.key}: {address} refused the request ({text}). Check the document, and the server's log."
        )
    # The server may ask for a longer wait (`Retry-After`) than `retry_for` allows. There is no retry then.
    return SampleError(
        f"{prompt.key}: {address} reports a temporary error, and {side}_retry_for={options.retry_for:g} s allows no "
        f"further retry ({text}). Check the server's log, or raise {side}_retry_for."
    )


def to_start_error(side: str, url: str, options: OpenAIOptions, error: RequestError, text: str) -> MaiError:
    """Return the error of an endpoint that did not list its models within `retry_for` seconds."""
    waited_s = options.retry_for
    if isinstance(error, StatusError) and error.status == 404:
        return EngineStartError(
            f"{side}={url} does not list its models ({text}). Check the address, which usually ends in /v1. If it is "
            f"right, give {side}_model=NAME."
        )
    if isinstance(error, StatusError) and error.status in (401, 403):
        return EngineStartError(auth_error_text(f"{side}={url}", options.api_key_env, text))
    return EngineStartError(
        f"{side}={url} {f'did not answer for {waited_s:g} s' if waited_s else 'does not answer'} ({text}). Check the "
        f"address, and whether the server runs. {side}_retry_for=SECONDS waits longer for a server that starts."
    )


def auth_error_text(address: str, variable: str, text: str) -> str:
    """Return the message for a key that the server refuses or misses. `variable`: the environment variable."""
    if os.environ.get(variable):
        return f"{address} refuses the key in {variable} ({text}). Set another key in {variable}."
    return f"{address} refuses requests without a key, and {variable} is not set ({text}). Set {variable}."
