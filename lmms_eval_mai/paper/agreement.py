"""Mutual verification: per benchmark, what kind of answer a document wants, how an answer is parsed, and
when two answers are the same (Section 4.1). Over lmms-eval's own parsers and metrics.

Two rules are ours. An answer that is empty or does not parse is None, and None agrees with nothing.
Agreement is symmetric and deterministic: no random fallback, no order of a set. Knows nothing of engines.

lmms-eval's modules are imported when first used: `lmms_eval.tasks` takes seconds.
"""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lmms_eval.api.reasoning import strip_reasoning_tags
from loguru import logger

from lmms_eval_mai.paper.prompts import Kind

Doc = Mapping[str, Any]

_BRACKETS = re.compile(r"(?<!\[)\[{2,}((?:(?!\[\[).)*?)\]{2,}", re.DOTALL)
_CHATTY = "lmms_eval.tasks.mmbench.mmbench_evals"
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True)
class AgreementRules:
    """What the user may choose about agreement."""

    anls_threshold: float = 0.9
    """InfoVQA: least ANLS of two answers that agree. The metric's own 0.5 calls "2019" and "2018" the same."""
    chartqa_match: Literal["exact", "relaxed"] = "exact"
    """ChartQA: same text, or within lmms-eval's relaxed correctness in both directions."""


@dataclass(frozen=True)
class Benchmark:
    """One benchmark's side of Section 4.1."""

    name: str
    kind: Callable[[Doc], Kind]
    parse: Callable[[str, Doc], str | None]
    """(the content of the last [[...]], or the whole text; the document) -> the answer, None if it does not parse."""
    agree: Callable[[str, str, AgreementRules], bool]
    """Whether two parsed answers are the same; symmetric."""


@dataclass(frozen=True)
class Verification:
    """One comparison of a small and a large answer: what was parsed, and whether it agrees."""

    small: str | None
    large: str | None
    agree: bool


def extract_answer(text: str) -> str:
    """The content of the last `[[...]]`; without brackets the whole text. Stripped, and without what a thinking
    model puts between its own tags (lmms-eval's default ones)."""
    text = strip_reasoning_tags(text, [["<think>", "</think>"], ["<analysis>", "</analysis>"]])
    found = _BRACKETS.findall(text)
    return (found[-1] if found else text).strip()


def verify(benchmark: Benchmark, doc: Doc, small: str, large: str, rules: AgreementRules) -> Verification:
    """Compare a small and a large model's texts for one document."""
    a, b = (benchmark.parse(extract_answer(text), doc) or None for text in (small, large))
    return Verification(a, b, a is not None and b is not None and benchmark.agree(a, b, rules))


# --- POPE ---------------------------------------------------------------------------------------------


def _parse_yes_no(answer: str, doc: Doc) -> str | None:
    from lmms_eval.tasks.mme.utils import parse_pred_ans

    answer = answer.strip(" *_`\"'")
    verdict = parse_pred_ans(answer)
    # parse_pred_ans looks for the letters in the first four characters: "Not sure" and "Nothing" would be a no.
    return verdict if verdict != "other" and re.match(rf"\W*({verdict}\b|[yn]\W*$)", answer, re.IGNORECASE) else None


# --- MMMU ---------------------------------------------------------------------------------------------


class _NoGuess(list):  # type: ignore[type-arg]
    """Choices that lmms-eval's MMMU parser can iterate but not draw from.

    When nothing parses it returns `random.choice(all_choices)`: two failures could agree, and the global
    random state would move. An empty length makes `random.choice` raise before it draws.
    """

    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: Any) -> Any:
        raise IndexError("nothing parsed")  # Python 3.10 does not look at the length


def _parse_mmmu(answer: str, doc: Doc) -> str | None:
    if _mmmu_kind(doc) == "word":
        return _exact(answer, doc)
    from lmms_eval.tasks.mmmu.utils import get_multi_choice_info, parse_multi_choice_response

    index2ans, choices = get_multi_choice_info(ast.literal_eval(doc["options"]))
    try:
        return parse_multi_choice_response(answer, _NoGuess(choices), index2ans)
    except IndexError:
        return None


def _agree_mmmu(a: str, b: str, rules: AgreementRules) -> bool:
    """Equal, or each is right where the other is taken for gold (MMMU's open rule is not symmetric)."""
    if a == b:
        return True
    from lmms_eval.tasks.mmmu.utils import eval_open, parse_open_response

    return bool(eval_open(a, parse_open_response(b)) and eval_open(b, parse_open_response(a)))


def _mmmu_kind(doc: Doc) -> Kind:
    return "letter" if doc["question_type"] == "multiple-choice" else "word"


# --- MMBench, RealWorldQA: option letters -----------------------------------------------------------------


def _parse_mmbench(answer: str, doc: Doc) -> str | None:
    from lmms_eval.tasks.mmbench.en_utils import mmbench_evaluator

    # The dict is a fresh one: can_infer_text lower-cases it.
    choices = {letter: str(doc[letter]) for letter in "ABCD" if _is_given(doc.get(letter))}
    logger.disable(_CHATTY)  # it logs every answer with a stray "A"
    try:
        letter = mmbench_evaluator.can_infer(answer, choices)
    finally:
        logger.enable(_CHATTY)
    return letter if letter in choices else None


def _is_given(option: Any) -> bool:
    return str(option) not in ("", "nan", "None")  # how data sets write "no such option"


def _realworldqa_letters(doc: Doc) -> list[str]:
    """The options that a question lists ("A. Left."); empty for an open question."""
    letters = re.findall(r"^\s*([A-H])[.)]\s", doc["question"], re.MULTILINE)
    if letters:
        return sorted(set(letters))
    return ["A", "B", "C", "D"] if "letter of the correct option" in doc["question"] else []


def _parse_realworldqa(answer: str, doc: Doc) -> str | None:
    letters = _realworldqa_letters(doc)
    return _letter(answer, letters) if letters else answer.lower().strip().rstrip(".")


def _letter(answer: str, letters: list[str]) -> str | None:
    from lmms_eval.tasks._task_utils.mcq_extract import extract_mcq_answer

    letter = extract_mcq_answer(answer, choices=letters)
    # Its last resort is any capital of any word: "Bird" would be a B.
    return letter if letter and re.search(rf"\b{letter}\b", answer) else None


# --- ChartQA, InfoVQA, shapes, and tasks that are not ours ----------------------------------------------------------


def _exact(answer: str, doc: Doc) -> str | None:
    """lmms-eval's ExactMatchVerifier: case and surrounding space do not count."""
    return answer.strip().lower()


def _equal(a: str, b: str, rules: AgreementRules) -> bool:
    return a == b


def _agree_chartqa(a: str, b: str, rules: AgreementRules) -> bool:
    if rules.chartqa_match == "exact" or a == b:
        return a == b
    from lmms_eval.tasks.chartqa.utils import relaxed_correctness

    # Relative to the target, so (105.1, 100) fails where (100, 105.1) passes: both directions must hold.
    return relaxed_correctness(a, b) and relaxed_correctness(b, a)


def _agree_infovqa(a: str, b: str, rules: AgreementRules) -> bool:
    """ANLS for words. Answers with numbers must be the same: "1.5 million" is 0.91 of "1.5 billion"."""
    if _DIGIT.search(a + b):
        return a.split() == b.split()
    from lmms_eval.api.metrics import anls

    return anls([a], [b])["anls"] >= rules.anls_threshold


def _options(doc: Doc) -> list[str]:
    """The option letters of a document of shapes or of a task that is not ours; empty if it shows none."""
    columns = [letter for letter in "ABCDEFGH" if _is_given(doc.get(letter))]
    if len(columns) >= 2:
        return columns
    for value in (doc.get("options"), doc.get("choices")):
        if isinstance(value, str):
            try:
                value = ast.literal_eval(value)
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                continue  # a text, not a list
        if isinstance(value, list | tuple | dict) and 2 <= len(value) <= 26:
            return [chr(ord("A") + i) for i in range(len(value))]
    return []


def _parse_any(answer: str, doc: Doc) -> str | None:
    letters = _options(doc)
    return _letter(answer, letters) if letters else _exact(answer, doc)


# --- The table ----------------------------------------------------------------------------------------


def _word(doc: Doc) -> Kind:
    return "word"


def _letter_if(listed: Callable[[Doc], list[str]]) -> Callable[[Doc], Kind]:
    return lambda doc: "letter" if listed(doc) else "word"


BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("pope", _word, _parse_yes_no, _equal),
        Benchmark("mmmu_val", _mmmu_kind, _parse_mmmu, _agree_mmmu),
        Benchmark("mmbench_en_dev", lambda doc: "letter", _parse_mmbench, _equal),
        Benchmark("chartqa", _word, _exact, _agree_chartqa),
        Benchmark("infovqa_val", _word, _exact, _agree_infovqa),
        Benchmark("realworldqa", _letter_if(_realworldqa_letters), _parse_realworldqa, _equal),
        Benchmark("shapes", _letter_if(_options), _parse_any, _equal),
    )
}

ANY = Benchmark("any", _letter_if(_options), _parse_any, _equal)
"""Rules for a task that is not ours: normalised exact match, or the option letter where the document has
options."""
