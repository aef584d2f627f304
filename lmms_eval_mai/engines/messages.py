"""Helpers for prompts that several engines use: texts of a message, the replica that answers it, and thinking that does
not fit the context."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from lmms_eval_mai.contract import ContentPart, Image, Message, Prompt
from lmms_eval_mai.errors import PromptTooLong

MIN_RESERVED_ANSWER_TOKENS, RESERVED_ANSWER_TOKENS = 16, 256
"""Tokens kept free for the answer when thinking is truncated: the limit of the answer, but at least 16 and at most 256.
At least 16, because the kept thinking may have a few more tokens when it is tokenized as part of the prompt."""


def merge_adjacent_text(content: Iterable[ContentPart]) -> Iterator[ContentPart]:
    """Join neighbouring texts. Some templates would put a line break between them, and every template must show the
    same words."""
    for is_image, group in itertools.groupby(content, key=lambda part: isinstance(part, Image)):
        if is_image:
            yield from group
        else:
            yield "".join(map(str, group))


def replace_lone_surrogates(text: str) -> str:
    """Replace each half of a surrogate pair by U+FFFD, so that the text can be encoded as UTF-8."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def without_thinking(prompt: Prompt, thinking: str) -> tuple[Message, ...]:
    """Return the prompt's messages without the thinking in the last one."""
    *before, last = prompt.messages
    content = tuple(part if isinstance(part, Image) else part.replace(thinking, "", 1) for part in last.content)
    return (*before, Message(last.role, content))


def is_too_long(error_text: str) -> bool:
    """Return whether this error text of vLLM (in this process or of a server) says that the prompt is too long."""
    return "context length" in error_text or "maximum model length" in error_text


def replica_of(prompt: Prompt, replicas: int) -> int:
    """Return the number of the replica that gets all calls with the prompt's first image, or else all of its document,
    also when the run is resumed: its caches hold the image and the question. They are distributed evenly."""
    images = (part.uuid for message in prompt.messages for part in message.content if isinstance(part, Image))
    shared = next(images, f"{prompt.key.task} {prompt.key.doc_id}")
    return int.from_bytes(hashlib.blake2b(shared.encode(), digest_size=8).digest()) % replicas


def end_of_thinking(
    prompt: Prompt, thinking: str, tokenizer: Any, context: int, other_tokens: int, max_tokens: int
) -> tuple[str, int]:
    """Return the longest final part of a thinking that fits its prompt and leaves space for an answer, and the number
    of dropped tokens. A character that is cut in two is dropped.

    `tokenizer`: of Hugging Face. `context`: of the model, in tokens. `other_tokens`: tokens of the prompt without
    thinking. `max_tokens`: limit of the answer. Raises `PromptTooLong` if there is no space.
    """
    space = context - other_tokens - max(MIN_RESERVED_ANSWER_TOKENS, min(max_tokens, RESERVED_ANSWER_TOKENS))
    if space <= 0:
        side = prompt.key.side
        raise PromptTooLong(
            f"{prompt.key}: image and question leave no space for thinking in the context of the {side} model, "
            f"{context} tokens. Raise {side}_max_model_len.",
            context,
        )
    tokens = tokenizer.encode(thinking, add_special_tokens=False)
    kept = tokens[-space:]
    return tokenizer.decode(kept).lstrip("\ufffd"), len(tokens) - len(kept)
