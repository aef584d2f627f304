"""The texts of tokens: the part of a text that each token carries.

Attention and log-probabilities are numbers per token. The method needs them for the tokens of the thinking or of the
answer. The tokenizer itself tells which characters a token of a prompt has (its offsets), and it decodes an answer
token by token. A character that is spread over several tokens belongs to the last of them, and the others have the
text "".
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.contract import CallKey, Image, Message, Prompt
from lmms_eval_mai.errors import SampleError

Offsets = Sequence[tuple[int, int]]
"""For each token, its first character in a text and the character after its last one. A text may lie in a longer one:
tokens before it have negative numbers."""


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """The consecutive tokens that carry a text."""

    start: int
    """Position of the first token in the prompt."""
    texts: tuple[str, ...]
    """The part of the text that each token carries. Joined, they are the text."""

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + len(self.texts)


def last_text(message: Message) -> str:
    """Return the texts after the last image of a message, joined."""
    return "".join(_last_texts(message))


def _last_texts(message: Message) -> list[str]:
    texts = itertools.takewhile(lambda part: not isinstance(part, Image), reversed(message.content))
    return [str(text) for text in texts][::-1]


def find_in_prompt(offsets: Offsets | None, prompt: Prompt, text: str) -> TokenSpan:
    """Return the tokens of a prompt that carry a text. The text must not be empty, and it must be a part of the last
    message after its last image.

    `offsets`: the characters of all tokens of the prompt, counted from the beginning of `last_text`. None: the prompt
    does not show this text. Several places of the message may have the text. A content part that equals the text
    counts first, then the first place in the last content part that contains it. Raises `SampleError` if the text is
    not found.
    """
    begin = _position(prompt.messages[-1], text)
    if begin is None:
        raise SampleError(
            f"{prompt.key}: attention was asked for a text that is not a part of the last message after its images."
        )
    if offsets is None:
        raise SampleError(
            f"{prompt.key}: the tokens of a text of {len(text)} characters were not found, so there is no attention on "
            "it. The model's chat template changes the text. Use transfer=full."
        )
    end = begin + len(text)
    # A tokenizer that composes characters (Unicode's NFC) leaves the composed marks out of its offsets. They belong to
    # the token before them, so a token reaches at least to the next one.
    starts = [start for start, _ in offsets]
    ends = [max(own, following) for (_, own), following in zip(offsets, [*starts[1:], end], strict=True)]
    first = next(position for position, token_end in enumerate(ends) if token_end > begin)
    after = next((position for position, start in enumerate(starts) if start >= end), len(starts))
    cuts = [begin, *(max(begin, start) for start in starts[first + 1 : after]), end]
    return TokenSpan(first, tuple(text[a - begin : b - begin] for a, b in itertools.pairwise(cuts)))


def texts_of_output(ids: Sequence[int], tokenizer: Any) -> tuple[str, ...]:
    """Return the text that each generated token adds. Special tokens add none, and a character that the end cuts in two
    is left out. The tokenizer must be a fast one of Hugging Face."""
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=True)
    texts = []
    for token in ids:
        try:
            texts.append(stream.step(tokenizer.backend_tokenizer, token) or "")
        except Exception:  # bytes that are not UTF-8 may change the text before them ("Invalid prefix encountered")
            stream = DecodeStream(skip_special_tokens=True)
            texts.append("")
    return tuple(texts)


def find_in_output(ids: Sequence[int], tokenizer: Any, key: CallKey, text: str) -> tuple[str, ...]:
    """Return the part of an answer's text that each of its tokens carries. Tokens after the text, for example the
    end-of-sequence token, are left out.

    `ids`: all generated tokens. `text`: their text, or its beginning. Raises `SampleError` if the tokens have another
    text.
    """
    texts = texts_of_output(ids, tokenizer)
    if not "".join(texts).startswith(text):
        raise SampleError(
            f"{key}: the text of the answer's tokens is not the answer's text of {len(text)} characters, so there is "
            "no attention on it. The model may have written bytes that are not UTF-8. Use sparse_from=large or "
            "transfer=full."
        )
    cuts = [0, *(min(end, len(text)) for end in itertools.accumulate(map(len, texts)))]
    parts = [text[a:b] for a, b in itertools.pairwise(cuts)]
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)


def _position(message: Message, text: str) -> int | None:
    """Return where the text begins in `last_text(message)`. None: it is empty, or it is not there."""
    parts = _last_texts(message)
    whole = "".join(parts)
    if not text or text not in whole:
        return None
    equal = [number for number, part in enumerate(parts) if part == text]
    containing = [number for number, part in enumerate(parts) if text in part]
    number = (equal or containing or [0])[-1]
    return whole.index(text, len("".join(parts[:number])))
