"""What the task YAMLs in `task_configs/` refer to: prompts, messages and the filter of the S, E, R and S2 tasks.

Questions and images come from lmms-eval's own task of the same benchmark, so that only the instruction differs.
Question and instruction are separate blocks of the message: the cascade swaps the last one without parsing text,
and any other lmms-eval model sees the same words.
"""

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lmms_eval.api.filter import Filter
from loguru import logger

from lmms_eval_mai.harness.requests import VARIANTS
from lmms_eval_mai.paper import prompts
from lmms_eval_mai.paper.agreement import BENCHMARKS, Doc, extract_answer

UPSTREAM: dict[str, tuple[str, str]] = {
    "pope": ("lmms_eval.tasks.pope.utils", "pope"),
    "mmmu_val": ("lmms_eval.tasks.mmmu.utils", "mmmu"),
    "mmbench_en_dev": ("lmms_eval.tasks.mmbench.en_utils", "mmbench"),
    "chartqa": ("lmms_eval.tasks.chartqa.utils", "chartqa"),
    "infovqa_val": ("lmms_eval.tasks.infovqa.utils", "infovqa"),
    "realworldqa": ("lmms_eval.tasks.realworldqa.utils", "realworldqa"),
    "shapes": ("lmms_eval_mai.harness.shapes", "shapes"),
}
"""Benchmark -> the module of lmms-eval's own task (shapes has none: our own), and the prefix of its functions."""

REALWORLDQA_WORD = "Please answer directly with a single word or number."
"""The data set's own format sentence of an open question, which gives way to the instruction."""

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")

ContentPart = dict[str, Any]
Messages = list[dict[str, Any]]


def doc_to_text(doc: Doc, lmms_eval_specific_kwargs: Mapping[str, Any]) -> str:
    """The question and the instruction of one of our tasks, as one text."""
    benchmark, variant = lmms_eval_specific_kwargs["benchmark"], lmms_eval_specific_kwargs["variant"]
    return _question(benchmark, doc) + _instruction(benchmark, variant, doc)


def doc_to_messages(doc: Doc, lmms_eval_specific_kwargs: Mapping[str, Any]) -> Messages:
    """One user turn: images and question, then the instruction as a block of its own."""
    benchmark, variant = lmms_eval_specific_kwargs["benchmark"], lmms_eval_specific_kwargs["variant"]
    return _messages(benchmark, doc, _instruction(benchmark, variant, doc))


def two_stage_text(
    doc: Doc,
    lmms_eval_specific_kwargs: Mapping[str, Any],
    round_idx: int | None = None,
    previous_output: Sequence[str] | None = None,
    previous_round_info: Any = None,
) -> str | tuple[Any, Any, bool, Any, Any]:
    """`doc_to_text` of the `_s2` tasks: round 0 asks E or R, round 1 asks Stage 2 with the answer to it.

    RoundTexts after 0 return lmms-eval's (visuals, text, terminal, previous outputs, round info).
    """
    if not round_idx or not previous_output:
        _tell_once()
        return doc_to_text(doc, lmms_eval_specific_kwargs)
    if round_idx > 1:
        return None, None, True, previous_output, previous_round_info
    benchmark = lmms_eval_specific_kwargs["benchmark"]
    text = _question(benchmark, doc) + prompts.stage2(previous_output[-1], BENCHMARKS[benchmark].kind(doc))
    return _upstream(benchmark, "doc_to_visual")(doc), text, False, previous_output, previous_round_info


def two_stage_messages(
    doc: Doc,
    lmms_eval_specific_kwargs: Mapping[str, Any],
    round_idx: int | None = None,
    previous_output: Sequence[str] | None = None,
    previous_round_info: Any = None,
) -> Messages | tuple[Messages | None, bool, Any, Any]:
    """The same for `doc_to_messages`. RoundTexts after 0 return (messages, terminal, previous outputs, round info)."""
    if not round_idx or not previous_output:
        return doc_to_messages(doc, lmms_eval_specific_kwargs)
    if round_idx > 1:
        return None, True, previous_output, previous_round_info
    benchmark = lmms_eval_specific_kwargs["benchmark"]
    ending = prompts.stage2(previous_output[-1], BENCHMARKS[benchmark].kind(doc))
    return _messages(benchmark, doc, ending), False, previous_output, previous_round_info


class AnswerFilter(Filter):
    """Hands lmms-eval's scorer the content of the last `[[...]]`, or the whole text where there is none.

    Control characters are left out: lmms-eval writes MMBench's answers to a spreadsheet, and one character that
    openpyxl refuses would lose the results of the whole run.
    """

    def apply(self, resps: Iterable[list[Any]], docs: Any) -> list[list[str]]:
        return [[self._answer(response) for response in one] for one in resps]

    def _answer(self, response: Any) -> str:
        return _CONTROL.sub("", extract_answer(self.final_text(response)))

    def final_text(self, response: Any) -> str:
        return str(response)


class TwoStageAnswerFilter(AnswerFilter):
    """The same for `_s2` tasks, whose responses are lists of rounds. One round alone is refused: it would be a
    one-stage answer under a two-stage name."""

    def final_text(self, response: Any) -> str:
        if not isinstance(response, list) or len(response) < 2:
            raise ValueError(
                "An _s2 task got an answer of one round: this model does not drive generate_until_multi_round. "
                "Use mai_cascade (mode=small or large for one model alone) or vllm, or the task without _s2."
            )
        return str(response[-1])


def _upstream(benchmark: str, function: str) -> Callable[..., Any]:
    module, prefix = UPSTREAM[benchmark]
    return getattr(importlib.import_module(module), f"{prefix}_{function}")


def _instruction(benchmark: str, variant: str, doc: Doc) -> str:
    letter, _ = VARIANTS[variant]
    return prompts.instruction(letter, BENCHMARKS[benchmark].kind(doc))


def _question(benchmark: str, doc: Doc) -> str:
    """The text of lmms-eval's own task up to its instruction, line breaks included.

    lmms-eval's function is given our instruction as its own, which is then taken off again: so RealWorldQA drops the
    data set's format sentence, and MMBench and MMMU keep their two line breaks.
    """
    marker = _instruction(benchmark, "s", doc)
    if benchmark == "mmmu_val":
        # Not mmmu_doc_to_text: it replaces <image 1> once mmmu_doc_to_messages has set a flag of the module.
        from lmms_eval.tasks.mmmu.utils import construct_prompt

        text = construct_prompt(doc, marker, marker)
    else:
        text = _upstream(benchmark, "doc_to_text")(doc, {"pre_prompt": "", "post_prompt": "\n" + marker})
    if benchmark == "realworldqa":
        text = text.replace(REALWORLDQA_WORD, "")  # lmms-eval drops the sentence of its letter questions only
    return text.removesuffix(marker)


def _messages(benchmark: str, doc: Doc, ending: str) -> Messages:
    return [{"role": "user", "content": [*_question_blocks(benchmark, doc), {"type": "text", "text": ending}]}]


def _question_blocks(benchmark: str, doc: Doc) -> list[ContentPart]:
    if benchmark != "mmmu_val":
        images = [{"type": "image", "url": image} for image in _upstream(benchmark, "doc_to_visual")(doc)]
        return [*images, {"type": "text", "text": _question(benchmark, doc)}]
    # MMMU interleaves its images with the text.
    from lmms_eval.tasks.mmmu.utils import mmmu_doc_to_messages

    marker = _instruction(benchmark, "s", doc)
    asked = {"multiple_choice_prompt": marker, "open_ended_prompt": marker, "prompt_type": "format"}
    *blocks, last = mmmu_doc_to_messages(doc, asked)[0]["content"]
    question = last["text"].removesuffix(marker)
    return [*blocks, {"type": "text", "text": question}]


_told = False


def _tell_once() -> None:
    """Backends without rounds fail on `_s2` tasks in ways that do not say so; this line stands above their error."""
    global _told
    if not _told:
        _told = True
        logger.info(
            "_s2 tasks ask twice, through generate_until_multi_round: mai_cascade and vllm do so; a backend that "
            "cannot ends with an error."
        )
