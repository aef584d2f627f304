"""Thinkings that repeat themselves, by their texts. `contract.Repetition` is the rule by which engines end them."""

from dataclasses import replace

from lmms_eval_mai.contract import Call

CHARACTERS, TIMES = 32, 5
"""A text repeats itself if it ends with one pattern of at least so many characters, so many times. An engine needs 6
times, of which the last one may lack a space or half a character in the text."""


def end_of_first_pattern(text: str) -> int | None:
    """Return where the first pattern of a text that repeats itself ends. None: it does not repeat itself."""
    for size in range(CHARACTERS, len(text) // TIMES + 1):
        if text.endswith(text[-CHARACTERS:], 0, -size) and text[-TIMES * size : -size] == text[-(TIMES - 1) * size :]:
            end = len(text) - (TIMES - 1) * size
            while end > size and text[end - 1] == text[end - 1 - size]:
                end -= 1
            return end
    return None


def without_repeats(call: Call) -> Call:
    """Return a thinking that an engine ended because it repeats itself, up to the end of its first pattern. Other calls
    stay as they are."""
    if call.finish_reason != "repetition":
        return call
    if call.text or call.thinking is None:
        return replace(call, text=call.text[: end_of_first_pattern(call.text)])
    return replace(call, thinking=call.thinking[: end_of_first_pattern(call.thinking)])
