"""A model behind OpenAI-compatible endpoints: vLLM's server, SGLang, a router, Ray Serve, or a commercial API."""

import dataclasses
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from lmms_eval_mai.contract import Call, EngineConfig, Identity, Message, Prompt, Sampling, Side
from lmms_eval_mai.engines.checkpoints import argument_identity
from lmms_eval_mai.engines.messages import space_for_thinking, without_thinking
from lmms_eval_mai.engines.openai.chat import chat_messages, sampling_arguments, to_call
from lmms_eval_mai.engines.openai.client import Client, ConnectionFailed, RequestError, RequestTimeout, StatusError
from lmms_eval_mai.engines.openai.endpoints import Endpoint, EndpointPool
from lmms_eval_mai.engines.openai.options import (
    PERFORMANCE_ARGUMENTS,
    OpenAIOptions,
    parse_addresses,
    read_api_key,
)
from lmms_eval_mai.errors import (
    ArgumentError,
    CallTimeout,
    EndpointBusy,
    EndpointRefused,
    EngineCrashed,
    EngineNotRunning,
    EngineStartError,
    MaiError,
    PromptTooLong,
    SampleError,
)

R = TypeVar("R")

MODEL_LIST_TIMEOUT_S = 10.0
"""Seconds in which an endpoint must list its models. Then it is asked again, for `retry_for` seconds."""


class OpenAIEngine:
    """One model on other machines, under the contract of `Engine`. Its calls have no `queued_s` and no `ttft_s`:
    endpoints do not report them."""

    def __init__(self, config: EngineConfig, other: EngineConfig | None = None) -> None:
        """Raises `ArgumentError`."""
        self.side: Side = config.side
        self._config = config
        self._options = OpenAIOptions(**config.arguments)
        self._urls = parse_addresses(config.side, config.model)
        self._pool: EndpointPool | None = None
        self._model = ""
        self._context: int | None = None
        """Tokens. None: the endpoint does not report it."""

    def validate(self) -> None:
        variable = self._options.api_key_env
        read_api_key(variable)
        if variable != OpenAIOptions.api_key_env and not os.environ.get(variable):
            raise ArgumentError(
                f"{self.side}_api_key_env={variable}: there is no environment variable {variable}. Set it."
            )

    def describe(self) -> str:
        replicas = f"{len(self._urls)} replicas, " if len(self._urls) > 1 else ""
        return f"{replicas}up to {self._options.concurrency} calls at once{' each' if replicas else ''}"

    def starts_alone(self) -> bool:
        return False

    def identity(self) -> Identity:
        """Return the identity of the served model. Its name and context are known after `start`."""
        return {
            "engine": "openai",
            "model": self._model or self._options.model or self._config.model,
            "context": str(self._context or "unknown"),
            "arguments": argument_identity(self._config.arguments, PERFORMANCE_ARGUMENTS),
        }

    def layers(self) -> int | None:
        return None  # the protocol has no attention weights

    async def start(self) -> None:
        """Wait until every endpoint answers, and read which model it serves."""
        pool = EndpointPool(self.side, self._urls, self._options)
        try:
            served = [await self._served_model(pool, endpoint) for endpoint in pool.endpoints]
            if len({name for name, _ in served}) > 1:
                models = ", ".join(f"{url}: {name}" for url, (name, _) in zip(self._urls, served, strict=True))
                raise EngineStartError(
                    f"The endpoints in {self.side}=... must serve the same model, but they serve different ones "
                    f"({models}). Start all servers with the same model, or leave the other endpoints out."
                )
        except BaseException:
            await pool.close()
            raise
        self._pool = pool
        self._model = served[0][0]
        self._context = min((context for _, context in served if context is not None), default=None)

    def is_up(self) -> bool:
        return self._pool is not None

    async def clear_caches(self) -> None:
        """Do nothing: its server keeps its caches."""

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        return await self._chat(prompt, prompt.messages, sampling)

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        """Uses vLLM's own paths `/tokenize` and `/detokenize`, which other servers may not have."""
        shorter = without_thinking(prompt, thinking)
        answer = await self._chat(prompt, shorter, dataclasses.replace(sampling, max_tokens=1))
        if self._context is None:
            raise self._cannot_truncate(prompt, "does not report its context length")
        remedy = f"Serve {self._model} with a longer context (--max-model-len)."
        space = space_for_thinking(
            prompt, self._model, self._context, answer.prompt_tokens, sampling.max_tokens, remedy
        )
        body = {"model": self._model, "prompt": thinking, "add_special_tokens": False}
        tokens = await self._post(prompt, "tokenize", body, "tokens")
        end = await self._post(prompt, "detokenize", {"model": self._model, "tokens": tokens[-space:]}, "prompt")
        return str(end).lstrip("\ufffd"), max(0, len(tokens) - space)

    def count_tokens(self, text: str) -> int | None:
        return None  # a request to /tokenize for each answer would double the number of requests

    async def _chat(self, prompt: Prompt, messages: tuple[Message, ...], sampling: Sampling) -> Call:
        submitted_at = time.perf_counter()
        body = {
            "model": self._model,
            "messages": await chat_messages(messages, self._options.max_pixels),
            **sampling_arguments(sampling, self._context),
        }
        reply = await self._request(prompt, lambda client: client.chat(body))
        return to_call(prompt, reply, time.perf_counter() - submitted_at)

    async def _post(self, prompt: Prompt, path: str, body: dict[str, Any], field: str) -> Any:
        """Post to a path beside `/v1` and return one field of the reply. Raises `PromptTooLong` if the server does not
        have the path."""
        try:
            reply = await self._request(prompt, lambda client: client.post_beside(path, body))
            return reply[field]
        except (MaiError, KeyError, TypeError) as error:
            if isinstance(error, MaiError) and getattr(error.__cause__, "status", 0) not in (404, 405):
                raise
            raise self._cannot_truncate(prompt, f"has no /{path} to truncate it") from error

    def _cannot_truncate(self, prompt: Prompt, problem: str) -> PromptTooLong:
        return PromptTooLong(
            f"{prompt.key}: the thinking does not fit, and {self._config.model} {problem}. Serve {self._model} with a "
            "longer context, or make the thinking shorter with a lower max_new_tokens."
        )

    async def _request(self, prompt: Prompt, send: Callable[[Client], Awaitable[R]]) -> R:
        """Send a request to the endpoint of its sample."""
        pool = self._pool
        if pool is None:
            raise EngineNotRunning(f"The {self.side} engine is not running.")
        try:
            return await pool.request(pool.endpoints_for(f"{prompt.key.task} {prompt.key.doc_id}"), send)
        except RequestError as error:
            if self._pool is not pool:
                message = f"The {self.side} engine {self._config.model} was closed during {prompt.key}."
                raise EngineNotRunning(message) from error
            raise self._call_error(prompt, error) from error

    def _call_error(self, prompt: Prompt, error: RequestError) -> MaiError:
        address, side, options = self._config.model, self.side, self._options
        if isinstance(error, RequestTimeout):
            return CallTimeout(
                f"{prompt.key}: {address} did not answer within {side}_request_timeout={options.request_timeout:g} s. "
                f"Raise {side}_request_timeout, or lower max_open_samples so that calls wait less."
            )
        if isinstance(error, ConnectionFailed):
            window = f"{options.retry_for:g} s ({side}_retry_for)"
            if error.others_answered:
                return SampleError(
                    f"{prompt.key}: {address} did not answer this request within {window}, but it answered other "
                    f"requests ({error}). Check the document, and the server's log."
                )
            return EngineCrashed(
                f"The {side} engine {address} did not answer within {window} ({error}). Check whether its server runs."
            )
        if error.status in (401, 403):
            return EndpointRefused(self._key_error_text(address, error))
        if error.status == 404:
            return EndpointRefused(
                f"{address} does not serve {self._model} any more ({error}). Start the server with this model again."
            )
        if isinstance(error, StatusError) and error.is_too_long:
            return PromptTooLong(
                f"{prompt.key}: the prompt does not fit the context of {self._model} ({error}). Serve {self._model} "
                f"with a longer context, or make images smaller with {side}_max_pixels=N."
            )
        if error.is_transient:
            # The server may ask for a longer wait (`Retry-After`) than `retry_for` allows. There is no retry then.
            return EndpointBusy(
                f"{prompt.key}: {address} reports a temporary error, and {side}_retry_for={options.retry_for:g} s "
                f"allows no further retry ({error}). Check the server's log, or raise {side}_retry_for.",
                error.retry_after_s,
            )
        return SampleError(
            f"{prompt.key}: {address} refused the request ({error}). Check the document, and the server's log."
        )

    async def _served_model(self, pool: EndpointPool, endpoint: Endpoint) -> tuple[str, int | None]:
        """Return name and context of the model that the endpoint serves. Raises `EngineStartError`."""
        name, address = self._options.model, f"{self.side}={endpoint.url}"
        timeout_s = min(MODEL_LIST_TIMEOUT_S, self._options.request_timeout)
        try:
            models = await pool.request([endpoint], lambda client: client.list_models(timeout_s))
        except RequestError as error:
            if name is not None and error.status == 404:
                return name, None  # some routers do not list their models
            raise self._start_error(address, error) from error
        if name is None and len(models) == 1:
            (name,) = models
        if name is None or name not in models:
            if not models:
                raise EngineStartError(f"{address} serves no model. Check the server.")
            served = ", ".join(sorted(models)) + (f", and not {name}" if name else "")
            raise EngineStartError(f"{address} serves {served}. Set {self.side}_model to one of the served names.")
        return name, models[name]

    def _start_error(self, address: str, error: RequestError) -> EngineStartError:
        if error.status == 404:
            return EngineStartError(
                f"{address} does not list its models ({error}). Check the address, which usually ends in /v1. If it "
                f"is right, give {self.side}_model=NAME."
            )
        if error.status in (401, 403):
            return EngineStartError(self._key_error_text(address, error))
        waited_s = self._options.retry_for
        return EngineStartError(
            f"{address} {f'did not answer for {waited_s:g} s' if waited_s else 'does not answer'} ({error}). Check the "
            f"address, and whether the server runs. {self.side}_retry_for=SECONDS waits longer for a server that "
            "starts."
        )

    def _key_error_text(self, address: str, error: RequestError) -> str:
        variable = self._options.api_key_env
        key = (
            f"the key in {variable}"
            if os.environ.get(variable)
            else f"requests without a key, and {variable} is not set"
        )
        return f"{address} refuses {key} ({error}). Set {variable} to a valid key."
