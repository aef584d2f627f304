"""Recognises the options and the instruction in the text of a question."""

import re
from collections.abc import Sequence

from lmms_eval_mai.paper.prompts import INSTRUCTIONS, Kind, Variant
from lmms_eval_mai.run.ask import LETTERS

_OPTION = re.compile(
    r"^[ \t]*\(?([A-Z])[.):][ \t]+(\S.*)$",  # "A. red", "A) red", "A: red" or "(A) red"
    re.MULTILINE,
)


def options_of(text: str) -> list[str]:
    """Return the texts of the last list of options in a text. Empty if it has none.

    A list has a line for each option. Its letters begin with A and have no gap.
    """
    found: list[str] = []
    last: list[str] = []
    for match in _OPTION.finditer(text):
        letter, option = match.group(1), match.group(2).rstrip()
        if letter == "A":
            found = [option]
        elif found and letter == LETTERS[len(found) % len(LETTERS)]:
            found.append(option)
        else:
            found = []
        if len(found) >= 2:
            last = found
    return last


def with_options(text: str, options: Sequence[str]) -> str:
    """Return the question with its options below, each on its own line, as the Python API writes them. A question that
    has these options already is not changed."""
    if options_of(text) == [option.strip() for option in options]:
        return text
    return "\n".join([text.rstrip("\n"), *(f"{letter}. {one}" for letter, one in zip(LETTERS, options, strict=False))])


def split_instruction(text: str) -> tuple[str, Variant | None, Kind | None]:
    """Return the question without an instruction of the paper at its end, and the variant and the kind that the
    instruction asks for. None: the question has none.

    A harness that runs a task of this package on the server sends the instruction of the task with the question.
    """
    stripped = text.rstrip()
    for (variant, kind), instruction in INSTRUCTIONS.items():
        if stripped.endswith(instruction):
            return stripped.removesuffix(instruction), variant, kind
    return text, None, None
