"""Reads the replies of an endpoint."""

from typing import Any

from lmms_eval_mai.contract import Call, Prompt
from lmms_eval_mai.engines.messages import replace_lone_surrogates
from lmms_eval_mai.errors import SampleError
from lmms_eval_mai.redaction import one_line


def to_call(prompt: Prompt, reply: Any, total_s: float) -> Call:
    """Return the call of a chat reply. Raises `SampleError` if the reply has no complete answer."""
    try:
        choice, usage = reply["choices"][0], reply["usage"]
        finish_reason, message = choice["finish_reason"], choice["message"]
        text, prompt_tokens, output_tokens = message.get("content"), usage["prompt_tokens"], usage["completion_tokens"]
        cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        problem = reply.get("error") if isinstance(reply, dict) else None
        problem = problem or "the reply has no choices or no token counts"
        raise SampleError(
            f"{prompt.key}: the server returned no answer ({one_line(str(problem))}). Check its log."
        ) from error
    if finish_reason not in ("stop", "length"):
        raise SampleError(f"{prompt.key}: the server ended the answer with {finish_reason!r}. Check its log.")
    if not isinstance(text, str):
        refusal = message.get("refusal")
        if refusal:
            raise SampleError(f"{prompt.key}: the model refused to answer ({one_line(refusal)}).")
        raise SampleError(
            f"{prompt.key}: the server's answer has no text. If the server uses a reasoning parser, serve the model "
            "without it."
        )
    return Call(
        key=prompt.key,
        text=replace_lone_surrogates(text),  # lmms-eval could not write them
        finish_reason=finish_reason,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        output_tokens=output_tokens,
        queued_s=None,
        ttft_s=None,
        total_s=total_s,
    )


def prompt_tokens(prompt: Prompt, reply: Any) -> int:
    """Return the number of prompt tokens of a chat reply. Raises `SampleError`."""
    return to_call(prompt, reply, 0.0).prompt_tokens


def served_models(reply: Any) -> dict[str, int | None]:
    """Return name and context (tokens, if reported) of each model in a list of models."""
    models = reply.get("data") if isinstance(reply, dict) else None
    entries = [model for model in models if isinstance(model, dict)] if isinstance(models, list) else []
    return {str(model["id"]): model.get("max_model_len") for model in entries if "id" in model}
