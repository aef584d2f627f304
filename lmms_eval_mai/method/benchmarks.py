"""The benchmarks: one record for each, with its parser, its rule of agreement (Section 4.1) and its score.

Parsers and metrics are lmms-eval's own. Two answers that agree have the same score, except with `infovqa_match=anls`
and `chartqa_match=relaxed`. Agreement never guesses and never depends on the order of a set. Functions import
lmms-eval's task modules when they first need them, because `lmms_eval.tasks` takes seconds to import.
"""

import ast
import re
import string
from collections.abc import Callable, Sequence
from typing import Any

from loguru import logger

from lmms_eval_mai.method.agreement import AgreementRules, Benchmark, Doc
from lmms_eval_mai.method.prompts import AnswerForm

LETTERS = string.ascii_uppercase
_LETTER = re.compile(r"[A-Z]")
_MARK = re.compile(
    r"""(?:((?:^[ \t*-]*|(?<=[:?][ \t]))[\['"]*)|(?<=[\s'"]))"""  # where a list may begin, or an option inside a line
    r"\(?([A-Z])[.):]\**[ \t]+(?=\S)",  # "A.", "A)", "A:" or "(A)", and a text
    re.MULTILINE,
)
_CHOICE = re.compile(
    r"(?:^|\b(?:answer|option|choice|boxed|is|be|choose|pick|select|therefore)\b)\W*([a-z])"
    r"(?!\W*(?:[,;&/]|and\b|or\b))"  # "A, C" is more than one option
    r"(?=\W*$|[.):*\]}]+\s|\n)"  # the end, or a mark and a text: in "a cat" it is an article
)
_ASKS_FOR_LETTER = re.compile(r"\b(option|choice)(.s)? letter\b", re.IGNORECASE)
_MANY_DIGITS = re.compile(r"\d{300}")
LONGEST_ANLS = 500
"""Length in characters up to which two answers are compared with ANLS. lmms-eval needs about 20 ms for this length."""
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _parse_yes_no(answer: str, doc: Doc) -> str | None:
    answer = answer.lower().strip()  # as pope_process_results: "Yes." and "Yes, there is a dog" have a score of 0
    return answer if answer in ("yes", "no") else None


class _NoGuess(list):  # type: ignore[type-arg]
    """Choices that lmms-eval's MMMU parser can iterate over but cannot draw from.

    If an answer does not parse, that parser returns `random.choice(all_choices)`. Two answers that do not parse could
    then agree, and the global random state would change. A length of 0 makes `random.choice` raise before it draws.
    """

    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: Any) -> Any:
        raise IndexError("nothing parsed")  # a random.choice that does not check the length must fail too


def _parse_mmmu(answer: str, doc: Doc) -> str | None:
    if _mmmu_answer_form(doc) == "word":
        return answer.strip().lower() if answer.strip(" .") else None  # the scorer reads an empty text in "..."
    from lmms_eval.tasks.mmmu.utils import get_multi_choice_info, parse_multi_choice_response

    index2ans, choices = get_multi_choice_info(ast.literal_eval(doc["options"]))
    try:
        letter: str | None = parse_multi_choice_response(answer, _NoGuess(choices), index2ans)
        return letter
    except IndexError:
        return None


def _agree_mmmu(a: str, b: str, rules: AgreementRules) -> bool:
    """Return whether the scorer reads the same texts and numbers in both, or each answer is right with the other one as
    gold. Both directions are required, because MMMU's open rule is not symmetric."""
    if a == b or _MANY_DIGITS.search(a + " " + b):  # the parser needs minutes for 30,000 digits in a row
        return a == b
    from lmms_eval.tasks.mmmu.utils import eval_open, parse_open_response

    read_a, read_b = parse_open_response(a), parse_open_response(b)
    if set(map(str, read_a)) == set(map(str, read_b)):
        return True
    # The scorer reads 1000 and 0 in "1,000", and 1000 in "1000": not the same list, but the same number.
    return bool(eval_open(a, read_b) and eval_open(b, read_a))


def _mmmu_answer_form(doc: Doc) -> AnswerForm:
    return "letter" if doc["question_type"] == "multiple-choice" else "word"


def _parse_mmbench(answer: str, doc: Doc) -> str | None:
    """Read the letter as lmms-eval's static evaluator does. A letter without an option is None; it is never right."""
    from lmms_eval.tasks._task_utils.mcq_extract import extract_mcq_answer
    from lmms_eval.tasks.mmbench.en_utils import mmbench_evaluator

    # The evaluator reads a missing option as the text "nan", which the answer "banana" contains.
    choices = mmbench_evaluator.build_choices({letter: doc.get(letter, "nan") for letter in "ABCD"})
    logger.disable("lmms_eval.tasks.mmbench.mmbench_evals")  # it logs a line for many answers with the word "A"
    letter = mmbench_evaluator.can_infer(answer, choices) or extract_mcq_answer(answer, choices=sorted(choices))
    return letter if letter and _is_given(doc.get(letter)) else None


def _is_given(option: Any) -> bool:
    return str(option) not in ("", "nan", "None")  # datasets mark a missing option in these ways


def _realworldqa_letters(doc: Doc) -> list[str]:
    """Return the letters of the options in a question ("A. Left."). Empty for an open question."""
    letters = re.findall(r"^\s*([A-H])[.)]\s", doc["question"], re.MULTILINE)
    if letters:
        return sorted(set(letters))
    return ["A", "B", "C", "D"] if "letter of the correct option" in doc["question"] else []


def _parse_realworldqa(answer: str, doc: Doc) -> str | None:
    from lmms_eval.tasks._task_utils.mcq_extract import extract_mcq_answer

    letters = _realworldqa_letters(doc)
    if not letters:
        return answer.lower().strip().rstrip(".")
    if letters[-1] > "D":  # the scorer reads a letter if the gold is A to D, and a text if it is E to H
        return answer.strip().rstrip(".")
    return extract_mcq_answer(answer, choices=list("ABCD")) or None


def _normalise(answer: str, doc: Doc) -> str | None:
    """Return the answer in lower case, without the space around it, as lmms-eval's ExactMatchVerifier compares it."""
    return answer.strip().lower()


def _parse_infovqa(answer: str, doc: Doc) -> str | None:
    """Return the words of the answer in lower case. ANLS compares the words but divides by the length of the raw text,
    so additional space between words would make different answers similar."""
    return " ".join(answer.lower().split())


def _parse_shapes(answer: str, doc: Doc) -> str | None:
    """Return the answer as the metric exact_match compares it: without case and punctuation."""
    answer = answer.strip().lower().translate(_PUNCTUATION)
    return answer if answer.strip() else None


def _agree_chartqa(a: str, b: str, rules: AgreementRules) -> bool:
    """Use the scorer's rule, with a tolerance of 0 for `exact`. So "5" and "5.0" agree, and have the same score. The
    scorer compares zeros and "nan" as texts, reads "2%" as 0.02, and "1,234" as a text."""
    if a == b:
        return True
    from lmms_eval.tasks.chartqa.utils import relaxed_correctness

    tolerance = 0.0 if rules.chartqa_match == "exact" else 0.05
    # The tolerance is relative to the target: (100, 105.1) passes and (105.1, 100) fails. Require both directions.
    return bool(relaxed_correctness(a, b, tolerance) and relaxed_correctness(b, a, tolerance))


def _agree_infovqa(a: str, b: str, rules: AgreementRules) -> bool:
    """Compare the texts, or with `infovqa_match=anls` their ANLS: that of "five million" and "five billion" is 0.92.

    Long texts must always be equal. The time of lmms-eval's ANLS grows with the product of the lengths: it would stop
    all samples for a minute if two models repeat a word up to the limit.
    """
    if a == b or rules.infovqa_match == "strict" or max(len(a), len(b)) > LONGEST_ANLS:
        return a == b
    from lmms_eval.api.metrics import anls

    return bool(anls([a], [b])["anls"] >= rules.anls_threshold)


def _exact(parsed: str, target: str) -> float:
    return float(parsed.strip().lower() == target.strip().lower())


def _score_mmmu(parsed: str, target: str) -> float:
    if _LETTER.fullmatch(parsed) and _LETTER.fullmatch(target):
        return float(parsed == target)
    from lmms_eval.tasks.mmmu.utils import eval_open, parse_open_response

    return float(eval_open(target, parse_open_response(parsed)))


def _score_chartqa(parsed: str, target: str) -> float:
    from lmms_eval.tasks.chartqa.utils import relaxed_correctness

    return float(relaxed_correctness(parsed, target))


def _score_infovqa(parsed: str, target: str) -> float:
    from lmms_eval.api.metrics import anls

    # Half of a longer answer must be deleted, so its ANLS is below the threshold of 0.5.
    close = [gold for gold in golds_of(target) if len(parsed) < 2 * len(gold) + 2]
    return float(anls(references=close, predictions=[parsed])["anls"]) if close else 0.0


def golds_of(target: str) -> list[str]:
    """Return the gold answers. lmms-eval logs a list of them as the text of a Python list."""
    if target.startswith("["):
        try:
            return [str(one) for one in ast.literal_eval(target)]
        except (ValueError, SyntaxError):
            pass
    return [target]


def _score_realworldqa(parsed: str, target: str) -> float:
    target = target.strip()
    if not re.fullmatch(r"[A-D]", target.upper()):
        return float(parsed.lower().strip().rstrip(".") == target.lower())
    if re.fullmatch(r"[A-D]", parsed):
        return float(parsed == target.upper())
    from lmms_eval.tasks._task_utils.mcq_extract import extract_mcq_answer

    return float(extract_mcq_answer(parsed, choices=["A", "B", "C", "D"]) == target.upper())


def _score_shapes(parsed: str, target: str) -> float:
    return float(_parse_shapes(parsed, {}) == _parse_shapes(target, {}))


def options_of(prompt: str) -> list[str]:
    """Return the texts of the last list of options in a prompt. Each has its letter before it, from A without a gap:
    "A. red" or "(A) red (B) blue". The list begins a line, or follows ":" or "?" and has no question after it, as names
    have in "By: A. Smith or B. Jones?". Empty: there is none."""
    marks: list[re.Match[str]] = []
    shown: list[re.Match[str]] = []
    for mark in _MARK.finditer(prompt):
        if mark[1] is not None and mark[2] == "A":
            is_inline = bool(prompt[: mark.start()].rpartition("\n")[2].strip(" \t*-"))
            marks = [] if is_inline and "?" in prompt[mark.end() :].partition("\n")[0] else [mark]
        elif marks and LETTERS[len(marks) :].startswith(mark[2]):
            marks.append(mark)
        shown = marks if len(marks) >= 2 else shown
    ends = [*(mark.start() for mark in shown[1:]), len(prompt)]
    return [prompt[mark.end() : end].split("\n")[0].rstrip() for mark, end in zip(shown, ends, strict=False)]


def letters_of(prompt: str) -> str:
    """Return the letters with which a prompt may be answered: those of its options; all letters, if it asks for that of
    an option in a picture. Empty: it is answered with a text."""
    return LETTERS[: len(options_of(prompt))] or (LETTERS if _ASKS_FOR_LETTER.search(prompt) else "")


def _parse_generic(answer: str, doc: Doc) -> str | None:
    """Return the letter of an option if the prompt shows its letter, else the text. The scorer of another lmms-eval
    task is not known. Case makes no difference, so equal texts always agree."""
    answer = answer.strip().lower()
    letters = [letter for letter in _CHOICE.findall(answer) if letter.upper() in doc.get("letters", "")]
    return letters[-1].upper() if letters else answer


def _letter_if(options: Callable[[Doc], Sequence[str]]) -> Callable[[Doc], AnswerForm]:
    return lambda doc: "letter" if options(doc) else "word"


BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            "pope", ".pope.utils.pope", _parse_yes_no, _exact, transfer_prompt="previous_thinking", shares_images=True
        ),
        Benchmark(
            "mmmu_val", ".mmmu.utils.mmmu", _parse_mmmu, _score_mmmu, _agree_mmmu, _mmmu_answer_form, one_stage=True
        ),
        Benchmark(
            "mmbench_en_dev",
            ".mmbench.en_utils.mmbench",
            _parse_mmbench,
            _exact,
            answer_form=lambda doc: "letter",
            shares_images=True,
        ),
        Benchmark(
            "chartqa",
            ".chartqa.utils.chartqa",
            _normalise,
            _score_chartqa,
            _agree_chartqa,
            transfer_prompt="previous_thinking",
            shares_images=True,
        ),
        Benchmark(
            "infovqa_val", ".infovqa.utils.infovqa", _parse_infovqa, _score_infovqa, _agree_infovqa, shares_images=True
        ),
        Benchmark(
            "realworldqa",
            ".realworldqa.utils.realworldqa",
            _parse_realworldqa,
            _score_realworldqa,
            answer_form=_letter_if(_realworldqa_letters),
        ),
        Benchmark(
            "shapes",
            "lmms_eval_mai.harness.tasks.shapes",
            _parse_shapes,
            _score_shapes,
            answer_form=_letter_if(lambda doc: [letter for letter in "ABCD" if _is_given(doc.get(letter))]),
            one_stage=True,
        ),
    )
}
"""Name -> benchmark. `shapes` is the demonstration, which is not in the paper."""

GENERIC = Benchmark("any", "", _parse_generic, score=None, answer_form=_letter_if(lambda doc: doc.get("letters", "")))
"""Rules for other lmms-eval tasks and for questions of one's own. `letters` of the document: those that the prompt
shows before the options, without a gap. Without them, answers are compared as texts."""


def benchmark_of(name: str) -> Benchmark:
    """Return a benchmark. `GENERIC` for another lmms-eval task."""
    return BENCHMARKS.get(name, GENERIC)
