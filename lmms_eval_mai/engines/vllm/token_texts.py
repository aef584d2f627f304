"""Finds the tokens that carry a text, and the part of the text that each of them carries.

Attention is a number per token, and the method needs it for the tokens of the thinking. The parts of the tokens,
joined, are the text exactly. Three things make that more than a search for token ids:

- A tokenizer may join the border of the text with its surroundings in one token. Such a token is cut to its part.
- A character may be spread over several tokens. It belongs to the last of them, and the others have the text "".
- A tokenizer may change a text before it tokenizes it. Qwen's composes characters (Unicode's NFC). The parts are cut
  from the original text.
"""

import bisect
import itertools
import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from lmms_eval_mai.contract import CallKey, Image, Message, Prompt
from lmms_eval_mai.engines.transformers.token_texts import TokenSpan, find_in_output
from lmms_eval_mai.errors import ArgumentError, SampleError

SPACE = "\u2581"
"""How tokenizers of the SentencePiece family write a space."""

SPECIAL = b"\xff"
"""Stands for a special token. No text contains this byte, so no text is found across a special token."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenReader:
    """Reads the texts of tokens with one tokenizer, which must be a fast one of Hugging Face."""

    def __init__(self, tokenizer: Any) -> None:
        """Raises `ArgumentError` if the tokens of this tokenizer cannot be read one by one."""
        self._tokenizer = tokenizer
        self._byte_level = _is_byte_level(tokenizer)
        added = tokenizer.added_tokens_decoder.items()
        self._special_ids = frozenset(id for id, token in added if token.special)
        self._known: dict[int, bytes] = {id: token.content.encode() for id, token in added}
        """The bytes of the tokens that were read so far."""

    def find_in_prompt(self, ids: Sequence[int], prompt: Prompt, text: str) -> TokenSpan:
        """Return the tokens that carry a text, which must be a part of the prompt's last message and not empty.

        `ids`: all tokens of the prompt. Several places of the message may have the text. A content part that equals the
        text counts first, then the first place in the last content part that contains it.
        Raises `SampleError` if the text is not found, because tokenizer or chat template changed it.
        """
        before, after = _surroundings(prompt.messages[-1], text, prompt.key)
        pieces = [
            SPECIAL if id in self._special_ids else piece for id, piece in zip(ids, self._bytes(ids), strict=True)
        ]
        tokens = b"".join(pieces)
        ends = list(itertools.accumulate(map(len, pieces)))
        for head, tail in ((before, after), (before.lstrip(), after.rstrip())):  # some templates trim a message
            span = _find(tokens, ends, head, text, tail) or _find_changed(tokens, ends, head, text, tail)
            if span is not None:
                return span
        raise _not_found(prompt.key, text)

    def find_in_output(self, ids: Sequence[int], key: CallKey, text: str) -> TokenSpan:
        """Return the tokens that carry an answer's text. Tokens after the text, for example the end-of-sequence token,
        are not part of it.

        `ids`: all generated tokens. `text`: their text without special tokens, or its beginning.
        Raises `SampleError` if the tokens have another text.
        """
        return TokenSpan(0, find_in_output(ids, self._tokenizer, key, text))

    def _bytes(self, ids: Sequence[int]) -> list[bytes]:
        known = self._known
        missing = list({id for id in ids if id not in known})
        for id, token in zip(missing, self._tokenizer.convert_ids_to_tokens(missing), strict=True):
            known[id] = b"" if token is None else _byte_level(token) if self._byte_level else _sentencepiece(token)
        return [known[id] for id in ids]


def _is_byte_level(tokenizer: Any) -> bool:
    """Return whether the characters of tokens stand for bytes. False: tokens are written as in SentencePiece. Raises
    `ArgumentError` for other tokenizers."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    state = {} if decoder is None else json.loads(decoder.__getstate__())
    parts = state.get("decoders", [state])
    kinds = {part.get("type") for part in parts}
    if "ByteLevel" in kinds:
        return True
    if kinds & {"Metaspace", "ByteFallback"} or any(SPACE in str(part.get("pattern")) for part in parts):
        return False
    raise ArgumentError(
        f"The tokens of {type(tokenizer).__name__} cannot be read one by one, so its model cannot give attention. "
        "Use a model with a fast byte-level or SentencePiece tokenizer, or transfer=full."
    )


def _byte_values() -> dict[str, int]:
    """Return the byte of each character of byte-level tokens: printable bytes stand for themselves, and the others
    follow from U+0100 on (GPT-2)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_VALUES = _byte_values()


def _byte_level(token: str) -> bytes:
    try:
        return bytes(map(_BYTE_VALUES.__getitem__, token))
    except KeyError:
        return token.encode()


def _sentencepiece(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(SPACE, " ").encode()


def _surroundings(message: Message, text: str, key: CallKey) -> tuple[str, str]:
    """Return the texts between the last image before the text and the text, and between the text and the next image.
    They are tokenized together with the text."""
    runs = [
        list(map(str, parts))
        for is_image, parts in itertools.groupby(message.content, key=lambda part: isinstance(part, Image))
        if not is_image
    ]
    run = next((run for run in reversed(runs) if text in run), None)
    run = run or next((run for run in reversed(runs) if text in "".join(run)), None)
    if run is None or not text:
        raise SampleError(f"{key}: attention was asked for a text that is not a part of the last message.")
    equal = [number for number, part in enumerate(run) if part == text]
    containing = [number for number, part in enumerate(run) if text in part]
    number = (equal or containing or [0])[-1]
    start = "".join(run).index(text, sum(map(len, run[:number])))
    whole = "".join(run)
    return whole[:start], whole[start + len(text) :]


def _find(tokens: bytes, ends: list[int], before: str, text: str, after: str) -> TokenSpan | None:
    """Return the tokens of a text that the tokenizer did not change. `ends`: end of each token in `tokens`."""
    encoded = [part.encode("utf-8", "surrogatepass") for part in (before, text, after)]
    found = tokens.rfind(b"".join(encoded))
    if found < 0:
        return None
    begin = found + len(encoded[0])
    first, last = _overlapping(ends, begin, begin + len(encoded[1]))
    sizes = (len(character.encode()) for character in text)
    return TokenSpan(first, _cut(text, sizes, [end - begin for end in ends[first : last + 1]]))


def _find_changed(tokens: bytes, ends: list[int], before: str, text: str, after: str) -> TokenSpan | None:
    """Return the tokens of a text that the tokenizer composed, or whose `SPACE` it changed.

    Compares decomposed texts. Decomposition changes a text character by character, up to the order of marks on one
    letter, so the numbers of decomposed characters tell which parts belong together.
    """
    written = tokens.decode("utf-8", "surrogateescape")
    found = _decomposed(written).rfind(_decomposed(before + text + after))
    if found < 0:
        return None
    begin = found + len(_decomposed(before))
    byte_ends = list(itertools.accumulate(len(c.encode("utf-8", "surrogateescape")) for c in written))
    unit_ends = list(itertools.accumulate(len(_decomposed(character)) for character in written))
    # The first and the last character, as written, that have a part of the text.
    head, tail = _overlapping(unit_ends, begin, begin + len(_decomposed(text)))
    first, last = _overlapping(ends, byte_ends[head - 1] if head else 0, byte_ends[tail])
    characters = (bisect.bisect_right(byte_ends, end) for end in ends[first : last + 1])
    sizes = (len(_decomposed(character)) for character in text)
    return TokenSpan(first, _cut(text, sizes, [unit_ends[n - 1] - begin if n else 0 for n in characters]))


def _decomposed(text: str) -> str:
    return unicodedata.normalize("NFD", text).replace(SPACE, " ")


def _overlapping(ends: list[int], begin: int, end: int) -> tuple[int, int]:
    """Return the numbers of the first and the last token that have a part of a range that is not empty."""
    return bisect.bisect_right(ends, begin), bisect.bisect_left(ends, end)


def _cut(text: str, sizes: Iterator[int], ends: list[int]) -> tuple[str, ...]:
    """Return the text in parts. `sizes`: size of each character. `ends`: end of each part in the same unit. A character
    belongs to the part in which it ends."""
    characters = list(itertools.accumulate(sizes))
    cuts = [0, *(bisect.bisect_right(characters, end) for end in ends)]
    return tuple(text[a:b] for a, b in itertools.pairwise(cuts))


def _not_found(key: CallKey, text: str) -> SampleError:
    return SampleError(
        f"{key}: the tokens of a text of {len(text)} characters were not found, so there is no attention on it. The "
        "model's tokenizer or chat template changes the text. Use transfer=full."
    )
