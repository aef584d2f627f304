"""Scores of answers that lmms-eval has not scored, such as the short answers inside a cascade.

A trace has each answer as the benchmark's scorer reads it, and the samples file has the gold answer. So the score
follows without the document. tests/reports/test_scoring.py compares it with lmms-eval's scorers.
"""

import ast
import re

from lmms_eval_mai.method.benchmarks import BENCHMARKS

_LETTER = re.compile(r"[A-Z]")
EQUAL_TEXTS = ("pope", "mmbench_en_dev", "mmmu_val")
"""Benchmarks whose scorers compare texts. MMMU's does it with option letters."""


def score_of(benchmark: str, parsed: str | None, target: str) -> float | None:
    """Return the score of a parsed answer, 0 to 1. None: the scorer of the benchmark is not known.

    An answer that does not parse has a score of 0. lmms-eval's MMMU scorer guesses an option in this case.
    """
    if benchmark not in BENCHMARKS:
        return None
    if parsed is None:
        return 0.0
    if benchmark == "infovqa_val":
        from lmms_eval.api.metrics import anls

        # Half of a longer answer must be deleted, so its ANLS is below the threshold of 0.5.
        close = [gold for gold in golds_of(target) if len(parsed) < 2 * len(gold) + 2]
        return float(anls(references=close, predictions=[parsed])["anls"]) if close else 0.0
    if benchmark == "chartqa":
        from lmms_eval.tasks.chartqa.utils import relaxed_correctness

        return float(relaxed_correctness(parsed, target))
    if benchmark == "mmmu_val" and not (_LETTER.fullmatch(parsed) and _LETTER.fullmatch(target)):
        from lmms_eval.tasks.mmmu.utils import eval_open, parse_open_response

        return float(eval_open(target, parse_open_response(parsed)))
    if benchmark == "realworldqa":
        return _realworldqa(parsed, target.strip())
    if benchmark == "shapes":
        read = BENCHMARKS[benchmark].parse
        return float(read(parsed, {}) == read(target, {}))
    return float(parsed.strip().lower() == target.strip().lower()) if benchmark in EQUAL_TEXTS else None


def golds_of(target: str) -> list[str]:
    """Return the gold answers. lmms-eval logs a list of them as the text of a Python list."""
    if target.startswith("["):
        try:
            return [str(one) for one in ast.literal_eval(target)]
        except (ValueError, SyntaxError):
            pass
    return [target]


def _realworldqa(parsed: str, target: str) -> float:
    if not re.fullmatch(r"[A-D]", target.upper()):
        return float(parsed.lower().strip().rstrip(".") == target.lower())
    if re.fullmatch(r"[A-D]", parsed):
        return float(parsed == target.upper())
    from lmms_eval.tasks._task_utils.mcq_extract import extract_mcq_answer

    return float(extract_mcq_answer(parsed, choices=["A", "B", "C", "D"]) == target.upper())
