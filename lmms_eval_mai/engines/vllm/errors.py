"""What vLLM refuses, in this package's errors and sentences."""

from lmms_eval_mai.engines.base import EngineConfig, Image, Prompt
from lmms_eval_mai.engines.messages import is_too_long
from lmms_eval_mai.errors import PromptTooLong, SampleError, UnreadableImage
from lmms_eval_mai.redaction import one_line, redacted


def sample_error(prompt: Prompt, config: EngineConfig, context: int, error: Exception) -> SampleError:
    """A request that was refused. `context`: tokens the model takes."""
    why = reason(error.__cause__ or error)
    if is_too_long(str(error)):
        return PromptTooLong(
            f"{prompt.key}: the prompt does not fit the context of {config.model}, {context} tokens ({why}). Raise "
            f'{config.side}_max_model_len, or shrink images with {config.side}_mm_processor_kwargs={{"max_pixels":N}} '
            '(InternVL: {"max_patches":N}).'
        )
    if "Processor" in str(error) and any(isinstance(b, Image) for message in prompt.messages for b in message.content):
        return UnreadableImage(
            f"{prompt.key}: the image could not be prepared for {config.model} ({why}). Check the document's image."
        )
    return SampleError(f"{prompt.key}: vLLM failed on this request to {config.model} ({type(error).__name__}: {why}).")


def start_error_text(config: EngineConfig, error: Exception) -> str:
    """An engine that does not start."""
    return (
        f"vLLM cannot start {config.side}={config.model}: {reason(error)} Its arguments here: "
        f"{redacted(config.arguments) or 'none'}. Check the name or path, and `{config.side}_<argument>` values."
    )


def reason(error: BaseException) -> str:
    """What an error of vLLM says, in one line of at most 400 characters."""
    if callable(details := getattr(error, "errors", None)):  # pydantic: its first line is but a count
        text = "; ".join(" ".join([*map(str, detail["loc"]), detail["msg"]]) for detail in details())
    else:
        text = str(error)
    return one_line(text) or type(error).__name__
