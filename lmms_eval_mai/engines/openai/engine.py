"""A model behind OpenAI-compatible endpoints: vLLM's server, SGLang, a router, Ray Serve, or a commercial API."""

import dataclasses
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from lmms_eval_mai.contract import Call, EngineConfig, Identity, Image, Message, Prompt, Sampling, Side
from lmms_eval_mai.engines.checkpoints import argument_identity
from lmms_eval_mai.engines.messages import (
    merge_adjacent_text,
    space_for_thinking,
    without_thinking,
)
from lmms_eval_mai.engines.openai.client import Client, ConnectionFailed, RequestError, RequestTimeout, StatusError
from lmms_eval_mai.engines.openai.endpoints import (
    Endpoint,
    EndpointPool,
    RequestFailed,
    parse_addresses,
    read_api_key,
)
from lmms_eval_mai.engines.openai.errors import to_mai_error, to_start_error
from lmms_eval_mai.engines.openai.images import data_url
from lmms_eval_mai.engines.openai.options import PERFORMANCE_ARGUMENTS, OpenAIOptions
from lmms_eval_mai.engines.openai.replies import prompt_tokens, served_models, to_call
from lmms_eval_mai.errors import (
    ArgumentError,
    EngineCrashed,
    EngineStartError,
    PromptTooLong,
    SampleError,
)

R = TypeVar("R")

MODEL_LIST_TIMEOUT_S = 10.0
"""Seconds in which an endpoint must list its models. Then it is asked again, for `retry_for` seconds."""


class OpenAIEngine:
    """One model on other machines, under the contract of `Engine`. Its calls have no `queued_s` and no `ttft_s`:
    endpoints do not report them."""

    def __init__(self, config: EngineConfig) -> None:
        """Raises `ArgumentError`."""
        self.side: Side = config.side
        self._config = config
        self._options = OpenAIOptions(**config.arguments)
        self._urls = parse_addresses(config.side, config.model)
        self._pool: EndpointPool | None = None
        self._model = ""
        self._context: int | None = None
        """Tokens. None: the endpoint does not report it."""

    @classmethod
    def from_config(cls, config: EngineConfig, other: EngineConfig | None) -> "OpenAIEngine":
        return cls(config)

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

    def open_samples(self) -> int | None:
        return None

    def layers(self) -> int | None:
        return None  # the protocol has no attention weights

    async def start(self) -> None:
        """Wait until every endpoint answers, and read which model it serves."""
        options = self._options
        pool = EndpointPool(
            self.side, self._urls, options.api_key_env, options.retry_for, options.request_timeout, options.concurrency
        )
        try:
            served = [await self._served_model(pool, endpoint) for endpoint in pool.endpoints]
        except BaseException:
            await pool.close()
            raise
        if len({name for name, _ in served}) > 1:
            await pool.close()
            models = ", ".join(f"{url}: {name}" for url, (name, _) in zip(self._urls, served, strict=True))
            raise EngineStartError(
                f"The endpoints in {self.side}=... must serve the same model, but they serve different ones ({models})."
                " Start all servers with the same model, or leave the other endpoints out."
            )
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
        submitted_at = time.perf_counter()
        answer = await self._chat(prompt, await self._messages(prompt.messages), sampling)
        return to_call(prompt, answer, time.perf_counter() - submitted_at)

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        """Uses vLLM's own paths `/tokenize` and `/detokenize`, which other servers may not have."""
        messages = await self._messages(without_thinking(prompt, thinking))
        answer = await self._chat(prompt, messages, dataclasses.replace(sampling, max_tokens=1))
        if self._context is None:
            raise PromptTooLong(
                f"{prompt.key}: the thinking does not fit, and {self._urls[0]} does not report its context length. "
                f"Serve {self._model} with a longer context, or make the thinking shorter with a lower max_new_tokens."
            )
        remedy = f"Serve {self._model} with a longer context (--max-model-len)."
        space = space_for_thinking(
            prompt, self._model, self._context, prompt_tokens(prompt, answer), sampling.max_tokens, remedy
        )
        body = {"model": self._model, "prompt": thinking, "add_special_tokens": False}
        tokens = await self._post(prompt, "tokenize", body, "tokens")
        end = await self._post(prompt, "detokenize", {"model": self._model, "tokens": tokens[-space:]}, "prompt")
        return str(end).lstrip("\ufffd"), max(0, len(tokens) - space)

    def count_tokens(self, text: str) -> int | None:
        return None  # a request to /tokenize for each answer would double the number of requests

    async def _messages(self, messages: tuple[Message, ...]) -> list[dict[str, Any]]:
        return [{"role": message.role, "content": await self._content(message)} for message in messages]

    async def _content(self, message: Message) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = []
        for part in merge_adjacent_text(message.content):
            if isinstance(part, Image):
                url = await data_url(part, self._options.max_pixels)
                content.append({"type": "image_url", "image_url": {"url": url}})
            else:
                content.append({"type": "text", "text": part})
        return content

    async def _chat(self, prompt: Prompt, messages: list[dict[str, Any]], sampling: Sampling) -> Any:
        """Send a chat request and return the reply."""
        parameters: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            # vLLM refuses a number above its context length.
            "max_tokens": min(sampling.max_tokens, self._context or sampling.max_tokens),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        penalties = {"presence_penalty": sampling.presence_penalty, "frequency_penalty": sampling.frequency_penalty}
        # Like the arguments in `more`: a checkpoint may have a default for these too.
        parameters |= {name: value for name, value in penalties.items() if self._context or value}
        if sampling.stop:
            parameters["stop"] = list(sampling.stop)
        more = {
            "top_k": (sampling.top_k, 0),
            "min_p": (sampling.min_p, 0.0),
            "repetition_penalty": (sampling.repetition_penalty, 1.0),
        }
        # A server that reports its context (vLLM, SGLang) always gets these arguments, because it would use the
        # checkpoint's defaults instead. Other servers get only values that change something, because OpenAI's own API
        # refuses these arguments.
        extra = {name: value for name, (value, default) in more.items() if self._context or value != default}
        extra |= {"ignore_eos": True} if sampling.ignore_eos else {}
        if sampling.seed is not None:
            parameters["seed"] = sampling.seed
        body = parameters | extra
        return await self._request(prompt, lambda client: client.post("chat/completions", body))

    async def _post(self, prompt: Prompt, path: str, body: dict[str, Any], field: str) -> Any:
        """Post to a path beside `/v1` and return one field of the reply. Raises `PromptTooLong` if the server does not
        have the path."""
        try:
            reply = await self._request(prompt, lambda client: client.post_beside(path, body))
            return reply[field]
        except (EngineCrashed, SampleError, KeyError, TypeError) as error:
            cause = error.__cause__
            path_is_missing = not isinstance(cause, RequestError) or getattr(cause, "status", 0) in (404, 405)
            if not path_is_missing:
                raise
            raise PromptTooLong(
                f"{prompt.key}: the thinking does not fit, and {self._config.model} has no /{path} to truncate it. "
                f"Serve {self._model} with a longer context, or make the thinking shorter with a lower max_new_tokens."
            ) from error

    async def _request(self, prompt: Prompt, send: Callable[[Client], Awaitable[R]]) -> R:
        """Send a request to the endpoint of its sample."""
        pool = self._pool
        if pool is None:
            raise EngineCrashed(f"The {self.side} engine is not running.")
        try:
            return await pool.request(pool.endpoints_for(f"{prompt.key.task} {prompt.key.doc_id}"), send)
        except RequestFailed as failure:
            error = to_mai_error(prompt, self._config.model, self._model, self._options, failure, pool)
            raise error from failure.error

    async def _served_model(self, pool: EndpointPool, endpoint: Endpoint) -> tuple[str, int | None]:
        """Return name and context of the model that the endpoint serves. Raises `EngineStartError`."""
        name, side, options = self._options.model, self.side, self._options
        timeout = min(MODEL_LIST_TIMEOUT_S, options.request_timeout)

        async def list_models(client: Client) -> Any:
            try:
                return await client.get("models", timeout)
            except RequestTimeout as error:  # it is retried: the server or its proxy may not be ready
                raise ConnectionFailed(f"no answer within {timeout:g} s") from error

        try:
            models = served_models(await pool.request([endpoint], list_models))
        except RequestFailed as failure:
            error = failure.error
            if name is not None and isinstance(error, StatusError) and error.status == 404:
                return name, None  # some routers do not list their models
            raise to_start_error(side, endpoint.url, options, error, pool.error_text(error)) from error
        if name is None and len(models) == 1:
            (name,) = models
        if name is None or name not in models:
            if not models:
                raise EngineStartError(f"{side}={endpoint.url} serves no model. Check the server.")
            served = ", ".join(sorted(models)) + (f", and not {name}" if name else "")
            raise EngineStartError(
                f"{side}={endpoint.url} serves {served}. Set {side}_model to one of the served names."
            )
        return name, models[name]
