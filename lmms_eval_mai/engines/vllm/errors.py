"""Translates vLLM's errors into this package's errors and sentences."""

from lmms_eval_mai import redaction
from lmms_eval_mai.contract import EngineConfig, Image, Prompt
from lmms_eval_mai.engines.messages import is_too_long
from lmms_eval_mai.errors import ArgumentError, EngineStartError, PromptTooLong, SampleError, UnreadableImage
from lmms_eval_mai.redaction import one_line, redacted


def sample_error(prompt: Prompt, config: EngineConfig, context: int, error: Exception) -> SampleError:
    """Return the error of a request that vLLM refused. `context`: the model's context in tokens."""
    reason = error_text(error.__cause__ or error)
    if is_too_long(str(error)):
        return PromptTooLong(
            f"{prompt.key}: the prompt does not fit the context of {config.model}, {context} tokens ({reason}). Raise "
            f'{config.side}_max_model_len, or shrink images with {config.side}_mm_processor_kwargs={{"max_pixels":N}} '
            '(InternVL: {"max_patches":N}).'
        )
    has_image = any(isinstance(part, Image) for message in prompt.messages for part in message.content)
    if has_image and "Processor" in str(error):
        return UnreadableImage(
            f"{prompt.key}: the image could not be prepared for {config.model} ({reason}). Check the document's image."
        )
    return SampleError(
        f"{prompt.key}: vLLM failed on this request to {config.model} ({type(error).__name__}: {reason}). Check the "
        "document, and the engine's log above."
    )


MISSING_GUARD = (
    'The script starts the engines without `if __name__ == "__main__":`. vLLM starts its engines as new processes, '
    "and each of them runs the script again from the top. Put the call under that line."
)


def invalid_argument(config: EngineConfig, error: Exception) -> ArgumentError | None:
    """Return the error for the first argument of the user whose type or range vLLM refuses. None: `error` is not about
    an argument of the user."""
    if not callable(details := getattr(error, "errors", None)):
        return None
    for detail in details():
        name = str(next(iter(detail["loc"]), ""))
        if name in config.arguments:
            return ArgumentError(f"{name}={redacted(config.arguments)[name]} is invalid. vLLM: {detail['msg']}.")
    return None


def start_error(config: EngineConfig, error: Exception, cause: str | None = None, log: str = "") -> EngineStartError:
    """Return the error of an engine that did not start. `cause`: the line of its log that says why. `log`: the end of
    its log."""
    name = f"vLLM cannot start {config.side}={config.model}"
    if MISSING_GUARD in log:
        return EngineStartError(f"{name}. {MISSING_GUARD}")
    message = (
        f"{name}: {one_line(cause or error_text(error)).rstrip('.')}. The engine's arguments: "
        f"{redacted(config.arguments) or 'none'}. Check the name or path, and the `{config.side}_<argument>` values."
    )
    return EngineStartError(f"{message}\nThe end of its log:\n{log}" if log else message)


def error_text(error: BaseException) -> str:
    """Return the message of an error of vLLM as one line of at most 400 characters."""
    if callable(details := getattr(error, "errors", None)):  # pydantic's first line is only a count of errors
        text = "; ".join(" ".join([*map(str, detail["loc"]), detail["msg"]]) for detail in details())
        return one_line(text) or type(error).__name__
    return redaction.error_text(error)
