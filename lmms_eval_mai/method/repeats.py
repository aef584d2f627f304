"""Thinkings that repeat themselves, by their texts. `contract.Repetition` is the rule by which engines end them."""

from dataclasses import replace

from lmms_eval_mai.contract import PROMPTS, Call

CHARACTERS, TIMES = 32, 5
"""A text repeats itself if it ends with one pattern of at least so many characters, so many times. An engine needs 6
times, of which the last one may lack a space or half a character in the text."""
THINKS = tuple(prompt for prompt, row in PROMPTS.items() if row.thinks)
"""Prompts of the calls that think."""


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


def is_endless(prompt: str, finish_reason: str, text: str, thinking: str | None) -> bool:
    """Return whether a thinking that its limit cut off repeats itself. The arguments are fields of the call."""
    is_cut = prompt in THINKS and finish_reason == "length"
    return is_cut and end_of_first_pattern(text or thinking or "") is not None


def about_cut(thinkings: int, cut: int, endless: int) -> str:
    """Return a sentence about the thinkings that their limit cut off, of which some repeat themselves. Empty: there are
    none."""
    if not cut:
        return ""
    share = f"A token limit cut off {cut} of {thinkings} thinkings ({cut / thinkings:.1%})"
    if not endless:
        return f"{share}. None of them repeats itself at its end."
    return f"{share}. {endless} of them repeat themselves at their end: stop_repeats=true ends such a thinking early."
