"""One call in the terms of vLLM: its chat, its sampling parameters, and its result or error."""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from lmms_eval_mai.contract import EngineConfig, Image, Message, Prompt, Reply, Sampling, TokenLogprobs
from lmms_eval_mai.engines.messages import is_too_long, merge_adjacent_text
from lmms_eval_mai.engines.thinking import SWITCH, Parser
from lmms_eval_mai.errors import ArgumentError, PromptTooLong, RequestRefused, SampleError, UnreadableImage
from lmms_eval_mai.redaction import error_text


def chat_message(message: Message) -> dict[str, Any]:
    """Return the message in vLLM's format. With the uuid of an image, vLLM prepares the image once per engine."""
    content = [
        {"type": "image_pil", "image_pil": part.pixels, "uuid": part.uuid}
        if isinstance(part, Image)
        else {"type": "text", "text": part}
        for part in merge_adjacent_text(message.content)
    ]
    return {"role": message.role, "content": content}


def sampling_params(sampling: Sampling, logprobs: bool = False, shows_marks: bool = False) -> Any:
    """Return vLLM's `SamplingParams`, with which vLLM returns an answer when it is complete. `logprobs`: and the
    log-probability of each token before temperature and penalties. `shows_marks`: with special tokens. Raises
    `ArgumentError` if vLLM refuses a value."""
    from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind, SamplingParams

    given = {**dataclasses.asdict(sampling), "stop": list(sampling.stop)}
    if (repetition := given["repetition_detection"]) is not None:
        given["repetition_detection"] = RepetitionDetectionParams(**repetition)
    try:
        return SamplingParams(  # has the names of `Sampling`
            **given,
            logprobs=0 if logprobs else None,  # of the sampled token only
            flat_logprobs=True,  # lists instead of two objects for each token
            skip_special_tokens=not shows_marks,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
    except Exception as error:  # its class is a `ValueError` in some versions of vLLM only
        raise ArgumentError(f"vLLM refuses a decoding argument: {error_text(error)}.") from error


def parser_of(name: str, tokenizer: Any, given: Mapping[str, Any]) -> Parser:
    """Return vLLM's parser of a thinking as a function. `given`: arguments of the chat template. Raises vLLM's errors
    for an unknown name, or for a tokenizer without the parser's marks."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.reasoning import ReasoningParserManager

    arguments = {**given, SWITCH: True}
    parser = ReasoningParserManager.get_reasoning_parser(name)(tokenizer, chat_template_kwargs=arguments)
    request = ChatCompletionRequest(messages=[], seed=None, chat_template_kwargs=arguments)
    return lambda text: parser.extract_reasoning(text, request)


def to_reply(engine_input: Any, result: Any, requested_at: float) -> Reply:
    """Return vLLM's finished output. `requested_at`: when it was requested, by `time.perf_counter`."""
    total_s = time.perf_counter() - requested_at
    output, metrics = result.outputs[0], result.metrics
    images = engine_input.get("mm_placeholders", {}).get("image", ())
    return Reply(
        text=output.text,
        finish_reason=output.finish_reason,
        prompt_tokens=len(result.prompt_token_ids),
        cached_tokens=result.num_cached_tokens or 0,
        output_tokens=len(output.token_ids),
        # vLLM's `..._ts` are monotonic times of the engine's process: only their differences have a meaning here.
        queued_s=max(0.0, metrics.scheduled_ts - metrics.queued_ts),
        # vLLM counts from the moment at which the prompt was given to its renderer.
        ttft_s=min(metrics.first_token_latency, total_s),
        total_s=total_s,
        image_tokens=sum(image.get_num_embeds() for image in images),
        logprobs=_logprobs(output.logprobs),
    )


def _logprobs(logprobs: Any) -> TokenLogprobs | None:
    """Return the log-probability of each sampled token. vLLM puts it before those of other tokens."""
    if not logprobs:
        return None
    first = logprobs.start_indices
    texts = tuple(logprobs.decoded_tokens[number] or "" for number in first)
    return TokenLogprobs(texts, tuple(logprobs.logprobs[number] for number in first))


def sample_error(prompt: Prompt, config: EngineConfig, context: int, error: Exception) -> SampleError:
    """Return the error of a request that vLLM refused. `context`: the model's context in tokens."""
    reason = error_text(error.__cause__ or error)
    if is_too_long(str(error)):
        return PromptTooLong(
            f"{prompt.key}: the prompt does not fit the context of {config.model}, {context} tokens ({reason}). Raise "
            f'{config.side}_max_model_len, or shrink images with {config.side}_mm_processor_kwargs={{"max_pixels":N}} '
            '(InternVL: {"max_patches":N}).',
            context,
            getattr(error, "value", None) if getattr(error, "parameter", "") == "input_tokens" else None,
        )
    # vLLM's own class for a value that it refuses has a `parameter`. It is a `ValueError` in some versions only.
    error_type = RequestRefused if isinstance(error, ValueError) or hasattr(error, "parameter") else SampleError
    if "Processor" in str(error):  # it prepares only images here
        error_type = UnreadableImage
    return error_type(
        f"{prompt.key}: vLLM refused this request to {config.model} ({type(error).__name__}: {reason}). Check the "
        "document, its image, the decoding arguments, and vLLM's log above."
    )
