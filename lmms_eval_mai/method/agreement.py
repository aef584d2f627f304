"""Mutual verification (Section 4.1): whether a small and a large model's answers agree.

An answer is read exactly as lmms-eval's scorer of the benchmark reads it. An answer that the scorer cannot read is
None, and None agrees with nothing. `benchmarks.py` has the parser and the rule of each benchmark.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from lmms_eval.api.reasoning import strip_reasoning_tags

from lmms_eval_mai.method.prompts import AnswerForm, TransferPrompt

Doc = Mapping[str, Any]

RULES = 2
"""The number of the rules by which answers are read and compared. A change of a rule increases it, so that stores and
reports do not mix runs of both. 2: option letters only if the prompt shows them; InfoVQA's `strict` compares texts."""

_BRACKETS = re.compile(
    r"(?<!\[)\[{2,}"  # two or more "[", beginning with the first of them
    r"((?:(?!\[\[).)*?)"  # the shortest text without "[["
    r"\]{2,}",  # two or more "]"
    re.DOTALL,
)
_OPEN_BRACKETS = re.compile(r"(?<!\[)\[{2,}([^\[\]]+)\Z")
"""Those of an answer that ended at `stop="]]"` or at a token limit."""
_MORE_THAN_BRACKETS = re.compile(r"[^\s\[\]]")
_CONTROL = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f"  # all control characters below U+0020 but tab and line breaks
    r"\ud800-\udfff\ufffe\uffff]"  # half of a surrogate pair; two code points that XML refuses
)


InfovqaMatch = Literal["strict", "anls"]
ChartqaMatch = Literal["exact", "relaxed"]


@dataclass(frozen=True)
class AgreementRules:
    """The user's choices for the rules of agreement: model arguments of a run."""

    anls_threshold: float = 0.9
    """InfoVQA with `infovqa_match=anls`: two answers agree if their ANLS is at least this value. Answers with more than
    500 characters must be equal. The ANLS of "north" and "south" is 0.6."""
    infovqa_match: InfovqaMatch = "strict"
    """InfoVQA: `strict` requires equal texts, without case and additional space. `anls` requires similar ones, but the
    ANLS of "five million" and "five billion" is 0.92."""
    chartqa_match: ChartqaMatch = "exact"
    """ChartQA: `exact` requires equal texts, or numbers other than 0 that are equal for the scorer ("5" and "5.0").
    `relaxed`: each answer must be correct by lmms-eval's relaxed rule (5%) if the other answer is the reference."""


AGREEMENT_OPTIONS = tuple(field.name for field in fields(AgreementRules))


@dataclass(frozen=True)
class Benchmark:
    """All that differs between benchmarks."""

    name: str
    functions: str
    """Module in `lmms_eval.tasks`, or a module of ours, and the first word of its functions `..._doc_to_visual` and
    `..._doc_to_text`. The module is imported at the first use: `lmms_eval.tasks` takes seconds."""
    parse: Callable[[str, Doc], str | None]
    """Gets the result of `extract_answer` and the document. Returns the parsed answer, or None if it does not parse."""
    score: Callable[[str, str], float] | None
    """Gets a parsed answer and the gold answer as lmms-eval logs it. Returns the score, 0 to 1. None: the scorer is not
    known."""
    same_answer: Callable[[str, str, AgreementRules], bool] = lambda a, b, rules: a == b
    """Returns whether two parsed answers are the same. Must be symmetric."""
    answer_form: Callable[[Doc], AnswerForm] = lambda doc: "word"
    """Returns the form of a document's answer."""
    transfer_prompt: TransferPrompt = "reference"
    shares_images: bool = False
    """Whether documents share images."""
    one_stage: bool = False
    """Whether the paper runs E and R of one model alone without Stage 2 (Tables 7, 8 and 14)."""

    def score_of(self, parsed: str | None, target: str) -> float | None:
        """Return the score of an answer that lmms-eval has not scored, such as a short answer inside a cascade. It is 0
        if the answer does not parse; lmms-eval's MMMU scorer guesses an option then. None: the scorer is not known."""
        return None if self.score is None else 0.0 if parsed is None else self.score(parsed, target)


def extract_answer(text: str) -> str:
    """Return the content of the last `[[...]]`, else the text after a `[[` that is not closed, else the whole text. The
    result is stripped. It is empty if there are only brackets, as after a limit of one token.

    Reasoning between lmms-eval's default tags (`<think>`, `<analysis>`) is removed first, to the end of the text if it
    was cut before its closing tag, and so are control characters: lmms-eval writes MMBench's answers to a spreadsheet,
    where one of them would lose the results of the whole run.
    """
    return _answer_in(text)[0]


def answer_span(text: str) -> tuple[int, int] | None:
    """Return where the answer of `extract_answer` is in the text: its start and its end. None: the answer is empty, or
    it is not one part of the text."""
    answer, brackets = _answer_in(text)
    start = text.rfind(answer, *(brackets.span(1) if brackets else (0, len(text))))
    return (start, start + len(answer)) if answer and start >= 0 else None


def without_answer(text: str) -> str:
    """Return the text without the `[[...]]` of the answer, and without the space before the brackets and at the end. If
    nothing is left, the text is returned unchanged."""
    _, brackets = _answer_in(text)
    if brackets is None:
        return text
    before, after = text[: brackets.start()].rstrip(), text[brackets.end() :]
    while before.endswith("[[") and after.lstrip().startswith("]]"):  # the answer has several pairs of brackets
        before, after = before.rstrip("[").rstrip(), after.lstrip().lstrip("]")
    return (before + after).rstrip() or text


def _answer_in(text: str) -> tuple[str, re.Match[str] | None]:
    """Return the answer in a text, and its brackets in this text. None: it has none."""
    closed = strip_reasoning_tags(_CONTROL.sub("", text), [["<think>", "</think>"], ["<analysis>", "</analysis>"]])
    seen = re.split("<think>|<analysis>", closed)[0]
    inside = [found[1] for found in _brackets(seen)][-1:]
    answer = (inside[0] if inside else seen).strip()
    same = [found for found in _brackets(text) if [_CONTROL.sub("", found[1])] == inside]
    return answer if _MORE_THAN_BRACKETS.search(answer) else "", same[-1] if same else None


def _brackets(text: str) -> list[re.Match[str]]:
    return [*_BRACKETS.finditer(text)] or [*_OPEN_BRACKETS.finditer(text)]


def read_answer(benchmark: Benchmark, doc: Doc, text: str) -> str | None:
    """Return the answer in a model's text as the scorer of the benchmark reads it, or None if the scorer cannot."""
    return benchmark.parse(extract_answer(text), doc) or None


def verify(benchmark: Benchmark, a: str | None, b: str | None, rules: AgreementRules) -> bool:
    """Return whether two parsed answers are the same. An answer that does not parse agrees with nothing."""
    return a is not None and b is not None and benchmark.same_answer(a, b, rules)
