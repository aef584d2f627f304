"""Texts and messages of a chat, as all engines need them: joined texts, special tokens that stay text, and thinking
that does not fit the context."""

import copy
import itertools
import re
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


def space_for_thinking(
    prompt: Prompt, model: str, context: int, other_tokens: int, max_tokens: int, remedy: str
) -> int:
    """Return how many tokens of thinking fit this prompt and leave space for an answer.

    `other_tokens`: tokens of the prompt without thinking. `max_tokens`: limit of the answer.
    Raises `PromptTooLong`, with `remedy` as its last sentence, if there is no space.
    """
    reserved = max(MIN_RESERVED_ANSWER_TOKENS, min(max_tokens, RESERVED_ANSWER_TOKENS))
    space = context - other_tokens - reserved
    if space <= 0:
        raise PromptTooLong(
            f"{prompt.key}: image and question leave no space for thinking in the context of {model}, "
            f"{context} tokens. {remedy}"
        )
    return space


def special_tokens(tokenizer: Any) -> list[str]:
    """Return the texts of a tokenizer's special tokens."""
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]


class LiteralTokenizer:
    """Tokenizes text literally: a part that looks like a special token is not read as a special token.

    Otherwise `<|im_end|>` in a document or in the thinking would end the message, and `<|image_pad|>` would be read as
    an image. May be used by several threads at once.
    """

    def __init__(self, tokenizer: Any, more_special_texts: Iterable[str] = ()) -> None:
        """`more_special_texts`: further strings with a special meaning, for example a model's image placeholder."""
        # Copies: reading special tokens as text is a state of a fast tokenizer, and threads would change it for each
        # other. Each copy gets its state here and keeps it.
        self._literal, self._special_too = copy.deepcopy(tokenizer), copy.deepcopy(tokenizer)
        self.tokens(""), self.tokens("", special=True)
        texts = [*special_tokens(tokenizer), *more_special_texts]
        self._special = re.compile("|".join(map(re.escape, texts))) if texts else None

    def looks_special(self, text: str) -> bool:
        """Return whether a part of the text looks like a special token or another string with a special meaning."""
        return self._special is not None and self._special.search(text) is not None

    def tokens(self, text: str, special: bool = False) -> list[int]:
        """Return the text's token ids. `special`: whether special tokens in it are read as special tokens."""
        tokenizer = self._special_too if special else self._literal
        ids: list[int] = tokenizer(text, add_special_tokens=False, split_special_tokens=not special)["input_ids"]
        return ids

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the first character of each of the text's tokens and the character after its last one. The tokenizer
        must be a fast one of Hugging Face."""
        found: list[tuple[int, int]] = self._literal(
            text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
        )["offset_mapping"]
        return found

    def text(self, tokens: list[int]) -> str:
        """Return the text of token ids."""
        text: str = self._literal.decode(tokens)
        return text

    def end(self, text: str, max_tokens: int) -> tuple[str, int]:
        """Return the text's last `max_tokens` tokens as text, and the number of dropped tokens. A character that is cut
        in two is dropped."""
        tokens = self.tokens(text)
        kept = tokens[-max_tokens:] if max_tokens > 0 else []
        return self.text(kept).lstrip("\ufffd"), len(tokens) - len(kept)
