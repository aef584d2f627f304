"""What every engine does with a chat before its own library gets it."""

import itertools
from collections.abc import Iterable, Iterator

from lmms_eval_mai.engines.base import ContentPart, Image, Message, Prompt

RESERVED_ANSWER_TOKENS = 256
"""Tokens kept free for an answer where thinking is shortened to fit."""


def merge_adjacent_text(blocks: Iterable[ContentPart]) -> Iterator[ContentPart]:
    """Neighbouring texts as one: templates that take plain strings would put a line break between them, and every
    template must show the same words."""
    for is_image, group in itertools.groupby(blocks, key=lambda block: isinstance(block, Image)):
        if is_image:
            yield from group
        else:
            yield "".join(map(str, group))


def without_thinking(prompt: Prompt, thinking: str) -> tuple[Message, ...]:
    """The prompt's turns with nothing where the last one holds this thinking."""
    *before, last = prompt.messages
    empty = tuple(b if isinstance(b, Image) else b.replace(thinking, "", 1) for b in last.content)
    return (*before, Message(last.role, empty))


def is_too_long(reason: str) -> bool:
    """Whether vLLM, in this process or behind a server, refuses a prompt for its length."""
    return "context length" in reason or "maximum model length" in reason


def reserved_answer_tokens(max_tokens: int) -> int:
    """Tokens that thinking must leave to the answer."""
    return max(16, min(max_tokens, RESERVED_ANSWER_TOKENS))
