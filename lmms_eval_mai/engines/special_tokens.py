"""Tokenizes text literally: a part that looks like a special token is not read as a special token.

Otherwise `<|im_end|>` in a document or in the thinking would end the message, and `<|image_pad|>` would be read as an
image.
"""

import copy
import re
from collections.abc import Iterable
from typing import Any


def special_tokens(tokenizer: Any) -> list[str]:
    """Return the texts of a tokenizer's special tokens."""
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]


class LiteralTokenizer:
    """A tokenizer that can tokenize text literally."""

    def __init__(self, tokenizer: Any, more_special_texts: Iterable[str] = ()) -> None:
        """`more_special_texts`: further strings with a special meaning, for example a model's image placeholder."""
        # A copy: reading special tokens as text is a state of the tokenizer, and other threads use the original.
        self._tokenizer = copy.deepcopy(tokenizer)
        texts = [*special_tokens(tokenizer), *more_special_texts]
        self._special = re.compile("|".join(map(re.escape, texts))) if texts else None

    def looks_special(self, text: str) -> bool:
        """Return whether a part of the text looks like a special token or another string with a special meaning."""
        return self._special is not None and self._special.search(text) is not None

    def tokens(self, text: str, special: bool = False) -> list[int]:
        """Return the text's token ids. `special`: whether special tokens in it are read as special tokens."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, split_special_tokens=not special)["input_ids"]
        return ids

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the first character of each of the text's tokens and the character after its last one. The tokenizer
        must be a fast one of Hugging Face."""
        found: list[tuple[int, int]] = self._tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
        )["offset_mapping"]
        return found

    def text(self, tokens: list[int]) -> str:
        """Return the text of token ids."""
        text: str = self._tokenizer.decode(tokens)
        return text

    def end(self, text: str, max_tokens: int) -> tuple[str, int]:
        """Return the text's last `max_tokens` tokens as text, and the number of dropped tokens. A character that is cut
        in two is dropped."""
        tokens = self.tokens(text)
        kept = tokens[-max_tokens:] if max_tokens > 0 else []
        return self.text(kept).lstrip("\ufffd"), len(tokens) - len(kept)
