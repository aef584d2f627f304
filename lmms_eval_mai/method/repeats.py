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
    """Return whether a thinking repeats itself at its end, and its limit or `stop_repeats` ended it. The arguments are
    fields of the call."""
    if prompt not in THINKS or finish_reason != "length":
        return prompt in THINKS and finish_reason == "repetition"
    return end_of_first_pattern(text or thinking or "") is not None


def about_ends(thinkings: int, cut: int, endless: int, stopped: int) -> str:
    """Return what to say about the thinkings that did not end by themselves. Empty: there are none. `cut`: by their
    limit, of which `endless` repeat themselves; `stopped`: by `stop_repeats`."""
    said = []
    if cut:
        advice = ": stop_repeats=true ends such a thinking early" if endless and not stopped else ""
        loops = f"{endless or 'none'} of them in a loop{advice}"
        said.append(f"A token limit cut off {cut} of {thinkings} thinkings ({cut / thinkings:.1%}), {loops}.")
    if stopped:
        said.append(f"stop_repeats ended {stopped} of {thinkings} thinkings ({stopped / thinkings:.1%}) in a loop.")
    return " ".join(said)
