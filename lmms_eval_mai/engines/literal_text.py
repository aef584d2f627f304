"""Text in which nothing is special: what a document or a thinking says ends no turn and stands for no picture."""

import copy
import re
from collections.abc import Iterable
from typing import Any


def special_tokens(tokenizer: Any) -> list[str]:
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]


class LiteralTokenizer:
    """A tokenizer that can take special tokens for text. `marks`: what else a text may hold that means something."""

    def __init__(self, tokenizer: Any, marks: Iterable[str] = ()) -> None:
        # A copy: reading special tokens as text is a state of a tokenizer, which others use in threads of their own.
        self._tokenizer = copy.deepcopy(tokenizer)
        marked = [*special_tokens(tokenizer), *marks]
        self._marked = re.compile("|".join(map(re.escape, marked))) if marked else None

    def is_marked(self, text: str) -> bool:
        """Whether something in it would be more than text."""
        return self._marked is not None and self._marked.search(text) is not None

    def tokens(self, text: str, special: bool = False) -> list[int]:
        """Those of a text in which nothing is special, or special tokens are."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, split_special_tokens=not special)["input_ids"]
        return ids

    def text(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens)
        return text

    def end(self, text: str, room: int) -> tuple[str, int]:
        """The text's last `room` tokens, of a character cut in two nothing; and how many tokens come before them."""
        tokens = self.tokens(text)
        kept = tokens[-room:] if room > 0 else []
        return self.text(kept).lstrip("\ufffd"), len(tokens) - len(kept)
