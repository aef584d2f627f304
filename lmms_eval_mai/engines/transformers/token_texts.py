"""The texts of tokens: the part of a text that each token carries.

Attention and log-probabilities are numbers per token, and the method needs them for a text. A character that is spread
over several tokens belongs to the last of them, and the others have the text "".
"""

import bisect
import itertools
from collections.abc import Sequence
from typing import Any

from tokenizers.decoders import DecodeStream

from lmms_eval_mai.contract import Image, Message


def find_in_prompt(
    offsets: Sequence[tuple[int, int]], shown: str, message: Message, text: str
) -> tuple[int, tuple[str, ...]]:
    """Return the position of the first token of a prompt that carries a text, and the part of the text that it and each
    of the next tokens carry. The text must be one part of the last message.

    `offsets`: for each token, its first character and the character after its last one. The tokenizer's text is longer
    than `shown`, the text of the chat template, because the processor repeats the image token. So places are counted
    from the end. Raises `ValueError` if the text is not found.
    """
    parts = [*itertools.takewhile(lambda part: not isinstance(part, Image), reversed(message.content))]
    whole = "".join(map(str, reversed(parts)))
    kept = whole if whole in shown else whole.strip()  # some templates trim a message
    if not text or text not in parts or kept not in shown:
        raise ValueError(
            f"a text of {len(text)} characters was not found, so there is no attention on it. It must be a part of the "
            "last message, and the model's chat template must not change it. Use transfer=full"
        )
    before = len("".join(map(str, parts[parts.index(text) + 1 :])))
    begin = offsets[-1][1] - len(shown) + shown.rindex(kept) - whole.index(kept) + before
    end = begin + len(text)
    # A tokenizer that composes characters (Unicode's NFC) leaves the composed marks out of its offsets. They belong to
    # the token before them, so a token reaches at least to the next one.
    starts = [start for start, _ in offsets]
    ends = [max(own, following) for (_, own), following in zip(offsets, [*starts[1:], end], strict=True)]
    first = next(position for position, token_end in enumerate(ends) if token_end > begin)
    after = next((position for position, start in enumerate(starts) if start >= end), len(starts))
    cuts = [begin, *(max(begin, start) for start in starts[first + 1 : after]), end]
    return first, tuple(text[a - begin : b - begin] for a, b in itertools.pairwise(cuts))


def texts_of_output(ids: Sequence[int], tokenizer: Any) -> tuple[str, ...]:
    """Return the text that each generated token adds. Special tokens add none, and a character that the end cuts in two
    is left out. The tokenizer must be a fast one of Hugging Face."""
    stream = DecodeStream(skip_special_tokens=True)
    texts = []
    for token in ids:
        try:
            texts.append(stream.step(tokenizer.backend_tokenizer, token) or "")
        except Exception:  # bytes that are not UTF-8 may change the text before them ("Invalid prefix encountered")
            stream = DecodeStream(skip_special_tokens=True)
            texts.append("")
    return tuple(texts)


def cut_at_stop(ids: list[int], tokenizer: Any, stops: Sequence[str]) -> tuple[list[int], str, bool]:
    """Return the tokens up to the one that completes a stop text, the text before the stop text, and whether there is
    one. If there are several, the one that ends first counts, as in vLLM."""

    def text_of(count: int) -> str:
        return str(tokenizer.decode(ids[:count], skip_special_tokens=True))

    def has_stop(count: int) -> bool:
        return any(stop in text_of(count) for stop in stops)

    if not has_stop(len(ids)):
        return ids, text_of(len(ids)), False
    count = bisect.bisect_left(range(len(ids)), True, key=has_stop)
    text = text_of(count)
    first = min((stop for stop in stops if stop in text), key=lambda stop: text.index(stop) + len(stop))
    return ids[:count], text[: text.index(first)], True
