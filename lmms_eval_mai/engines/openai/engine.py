"""A model behind OpenAI-compatible endpoints: vLLM's server, SGLang, a router, Ray Serve, a vendor."""

import dataclasses
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from lmms_eval_mai.engines.base import Call, EngineConfig, Identity, Image, Message, Prompt, Sampling, Side
from lmms_eval_mai.engines.checkpoints import argument_identity
from lmms_eval_mai.engines.messages import merge_adjacent_text, reserved_answer_tokens, without_thinking
from lmms_eval_mai.engines.openai.endpoints import Endpoint, EndpointPool, addresses, is_timeout, key_of
from lmms_eval_mai.engines.openai.errors import auth_error_text, to_mai_error
from lmms_eval_mai.engines.openai.images import data_url
from lmms_eval_mai.engines.openai.options import PERFORMANCE_ARGUMENTS, OpenAIOptions
from lmms_eval_mai.errors import (
    ArgumentError,
    EngineCrashed,
    EngineStartError,
    EngineUnavailable,
    PromptTooLong,
    SampleError,
)

R = TypeVar("R")

MODEL_LIST_TIMEOUT_S = 10.0
"""Seconds in which an endpoint says what it serves."""


class OpenAIEngine:
    """One model on other machines, under the contract of `Engine`. It tells neither when a call was scheduled nor when
    its first token came."""

    def __init__(self, config: EngineConfig) -> None:
        """Raises `ArgumentError`."""
        self.side: Side = config.side
        self._config = config
        self._options = OpenAIOptions(**config.arguments)
        self._urls = addresses(config.side, config.model)
        self._replicas: EndpointPool | None = None
        self._model = ""
        self._context: int | None = None

    @classmethod
    def from_config(cls, config: EngineConfig, other: EngineConfig | None) -> "OpenAIEngine":
        return cls(config)

    def validate(self) -> None:
        variable = self._options.api_key_env
        key_of(variable)
        if variable != OpenAIOptions.api_key_env and not os.environ.get(variable):
            raise ArgumentError(f"{self.side}_api_key_env={variable}: there is no environment variable {variable}.")
        try:
            import openai  # noqa: F401
        except ImportError as error:
            raise EngineUnavailable(
                f"engine=openai needs the openai package, which does not import here ({error}): `pip install openai`."
            ) from error

    def describe(self) -> str:
        replicas = f"{len(self._urls)} replicas, " if len(self._urls) > 1 else ""
        return f"{replicas}up to {self._options.concurrency} calls at once{' each' if replicas else ''}"

    def identity(self) -> Identity:
        """What is served is known after `start`."""
        return {
            "engine": "openai",
            "model": self._model or self._options.model or self._config.model,
            "context": str(self._context or "unknown"),
            "arguments": argument_identity(self._config.arguments, PERFORMANCE_ARGUMENTS),
        }

    async def start(self) -> None:
        """Wait until every endpoint answers, and find out what it serves."""
        options = self._options
        replicas = EndpointPool(
            self.side, self._urls, options.api_key_env, options.retry_for, options.request_timeout, options.concurrency
        )
        try:
            served = [await self._served_model(replicas, endpoint) for endpoint in replicas.endpoints]
        except BaseException:
            await replicas.close()
            raise
        if len({name for name, _ in served}) > 1:
            await replicas.close()
            each = ", ".join(f"{url}: {name}" for url, (name, _) in zip(self._urls, served, strict=True))
            raise EngineStartError(f"The replicas of the {self.side} model serve different ones ({each}).")
        self._replicas = replicas
        self._model = served[0][0]
        self._context = min((context for _, context in served if context is not None), default=None)

    async def close(self) -> None:
        replicas, self._replicas = self._replicas, None
        if replicas is not None:
            await replicas.close()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        asked = time.perf_counter()
        answer = await self._ask(prompt, await self._messages(prompt.messages), sampling)
        return _call(prompt, answer, time.perf_counter() - asked)

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        """With vLLM's own `/tokenize` and `/detokenize`, which other servers may lack."""
        messages = await self._messages(without_thinking(prompt, thinking))
        alone = await self._ask(prompt, messages, dataclasses.replace(sampling, max_tokens=1))
        if self._context is None:
            raise PromptTooLong(
                f"{prompt.key}: the thinking does not fit, and {self._urls[0]} does not say how long its context is. "
                f"Serve {self._model} with a longer one, or lower max_new_tokens."
            )
        room = self._context - alone.usage.prompt_tokens - reserved_answer_tokens(sampling.max_tokens)
        if room <= 0:
            raise PromptTooLong(
                f"{prompt.key}: image and question leave no room for thinking in the context of {self._model}, "
                f"{self._context} tokens. Serve it with a longer one (--max-model-len)."
            )
        body = {"model": self._model, "prompt": thinking, "add_special_tokens": False}
        tokens = await self._post(prompt, "tokenize", body, "tokens")
        end = await self._post(prompt, "detokenize", {"model": self._model, "tokens": tokens[-room:]}, "prompt")
        return str(end).lstrip("\ufffd"), max(0, len(tokens) - room)

    async def _messages(self, messages: tuple[Message, ...]) -> list[dict[str, Any]]:
        return [{"role": message.role, "content": await self._content(message)} for message in messages]

    async def _content(self, message: Message) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = []
        for block in merge_adjacent_text(message.content):
            if isinstance(block, Image):
                url = await data_url(block, self._options.max_pixels)
                content.append({"type": "image_url", "image_url": {"url": url}})
            else:
                content.append({"type": "text", "text": block})
        return content

    async def _ask(self, prompt: Prompt, messages: list[dict[str, Any]], sampling: Sampling) -> Any:
        parameters: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            # vLLM refuses more than the context instead of stopping there.
            "max_tokens": min(sampling.max_tokens, self._context or sampling.max_tokens),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        more = {"top_k": (sampling.top_k, 0), "repetition_penalty": (sampling.repetition_penalty, 1.0)}
        # OpenAI's own servers do not know these: they get them where they say something. Those that tell their context
        # (vLLM, SGLang) would take the checkpoint's own, which may be others.
        extra = {name: value for name, (value, default) in more.items() if self._context or value != default}
        extra |= {"ignore_eos": True} if sampling.ignore_eos else {}
        if sampling.seed is not None:
            parameters["seed"] = sampling.seed
        return await self._request(
            prompt, lambda client: client.chat.completions.create(**parameters, extra_body=extra or None)
        )

    async def _post(self, prompt: Prompt, path: str, body: dict[str, Any], wanted: str) -> Any:
        """To a path beside `/v1`; -> one field of the reply."""
        import openai

        try:
            reply = await self._request(
                prompt, lambda client: client.post(_server_root(client, path), body=body, cast_to=object)
            )
            return reply[wanted]  # type: ignore[index]
        except (EngineCrashed, SampleError, KeyError, TypeError) as error:
            status = getattr(error.__cause__, "status_code", None)
            if isinstance(error.__cause__, openai.OpenAIError) and status not in (404, 405):
                raise
            raise PromptTooLong(
                f"{prompt.key}: the thinking does not fit, and {self._config.model} has no /{path} with which to "
                f"shorten it. Serve {self._model} with a longer context, or lower max_new_tokens."
            ) from error

    async def _request(self, prompt: Prompt, send: Callable[[Any], Awaitable[R]]) -> R:
        """One request, to the endpoint of its sample."""
        import openai

        replicas = self._replicas
        if replicas is None:
            raise EngineCrashed(f"The {self.side} engine is not running.")
        try:
            return await replicas.ask(replicas.of(f"{prompt.key.task} {prompt.key.doc_id}"), send)
        except openai.OpenAIError as error:
            raise to_mai_error(prompt, self._config.model, self._model, self._options, error, replicas) from error

    async def _served_model(self, replicas: EndpointPool, endpoint: Endpoint) -> tuple[str, int | None]:
        """(name, context or None) of the model there. Raises `EngineStartError`."""
        import openai

        given, side = self._options.model, self.side
        timeout = min(MODEL_LIST_TIMEOUT_S, self._options.request_timeout)
        try:
            page = await replicas.ask([endpoint], lambda client: client.models.list(timeout=timeout))
        except openai.NotFoundError as error:
            if given is not None:
                return given, None  # some routers list nothing
            raise EngineStartError(
                f"{side}={endpoint.url} does not say which models it has ({replicas.why(error)}). Check the address, "
                f"which usually ends in /v1, and give {side}_model=NAME if it is right."
            ) from error
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise EngineStartError(
                auth_error_text(f"{side}={endpoint.url}", self._options.api_key_env, replicas.why(error))
            ) from error
        except openai.OpenAIError as error:
            window = timeout if is_timeout(error) else self._options.retry_for
            raise EngineStartError(
                f"{side}={endpoint.url} {f'did not answer for {window:g} s' if window else 'does not answer'} "
                f"({replicas.why(error)}). Look whether the server runs there, and check the address; "
                f"{side}_retry_for=SECONDS waits longer for one that starts."
            ) from error
        cards = {card.id: card for card in getattr(page, "data", None) or []}
        if given is None and len(cards) == 1:
            (given,) = cards
        if given is None or given not in cards:
            what = f"not {given}" if given else "and which one is meant is not said"
            raise EngineStartError(
                f"{side}={endpoint.url} serves {', '.join(sorted(cards)) or 'nothing'}, {what}: give {side}_model=NAME."
            )
        return given, getattr(cards[given], "max_model_len", None)


def _server_root(client: Any, path: str) -> str:
    return str(client.base_url).rstrip("/").removesuffix("/v1") + "/" + path


def _call(prompt: Prompt, answer: Any, total_s: float) -> Call:
    if not getattr(answer, "choices", None) or answer.usage is None:
        what = getattr(answer, "error", None) or "no answer, or no token counts, in the reply"
        raise SampleError(f"{prompt.key}: the server answered without an answer ({str(what)[:400]}).")
    choice, usage = answer.choices[0], answer.usage
    if choice.finish_reason not in ("stop", "length"):
        raise SampleError(f"{prompt.key}: the server ended the answer with {choice.finish_reason!r}.")
    if choice.message.content is None:
        refusal = getattr(choice.message, "refusal", None)
        why = f"it refused: {refusal}" if refusal else "a server that splits off reasoning must be told not to"
        raise SampleError(f"{prompt.key}: the server's answer has no text ({why}).")
    details = usage.prompt_tokens_details
    return Call(
        key=prompt.key,
        text=choice.message.content,
        finish_reason=choice.finish_reason,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        output_tokens=usage.completion_tokens,
        queued_s=None,
        ttft_s=None,
        total_s=total_s,
    )
