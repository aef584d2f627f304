"""Functions for the task YAMLs in `task_configs/`: texts, messages and answer filters of the S, E, R and S2 tasks.
Other lmms-eval tasks have functions of their own (`requests.py`).

Questions and images come from lmms-eval's own task of the same benchmark, so that only the instruction differs.
Question and instruction are separate blocks of the message: the cascade can replace the instruction without parsing
text, and any other lmms-eval model gets the same words.
"""

import importlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lmms_eval.api.filter import Filter

from lmms_eval_mai.method import prompts
from lmms_eval_mai.method.agreement import Doc, extract_answer
from lmms_eval_mai.method.benchmarks import BENCHMARKS

Messages = list[dict[str, Any]]


def doc_to_text(doc: Doc, lmms_eval_specific_kwargs: Mapping[str, Any]) -> str:
    """Return the question and the instruction of one of our tasks as one text."""
    benchmark, variant = lmms_eval_specific_kwargs["benchmark"], lmms_eval_specific_kwargs["variant"]
    return _question(benchmark, doc) + _instruction(benchmark, variant, doc)


def doc_to_messages(doc: Doc, lmms_eval_specific_kwargs: Mapping[str, Any]) -> Messages:
    """Return one user message: images and question, then the instruction as a separate block."""
    benchmark, variant = lmms_eval_specific_kwargs["benchmark"], lmms_eval_specific_kwargs["variant"]
    return _messages(benchmark, doc, _instruction(benchmark, variant, doc))


def pope_process_results(doc: Doc, results: Sequence[str]) -> dict[str, Any]:
    """Return what lmms-eval's metrics of POPE need of an answer, with the name of the image: `cluster_key`, by which
    lmms-eval computes an error of questions that share an image."""
    from lmms_eval.tasks.pope.utils import pope_process_results

    metrics: dict[str, dict[str, Any]] = pope_process_results(doc, results)
    return {metric: {**answer, "image_source": doc.get("image_source")} for metric, answer in metrics.items()}


def mmmu_process_results(doc: Doc, results: Sequence[str]) -> dict[str, Any]:
    """Return what lmms-eval's metric `mmmu_acc` needs of an answer. The other two results of lmms-eval's own function
    are not in the `metric_list`: lmms-eval writes them as empty lists, which W&B cannot log."""
    from lmms_eval.tasks.mmmu.utils import mmmu_process_results

    return {"mmmu_acc": mmmu_process_results(doc, results)["mmmu_acc"]}


def two_stage_messages(
    doc: Doc,
    lmms_eval_specific_kwargs: Mapping[str, Any],
    round_idx: int | None = None,
    previous_output: Sequence[str] | None = None,
    previous_round_info: Any = None,
) -> Messages | tuple[Messages | None, bool, Any, Any]:
    """`doc_to_messages` of the `_s2` tasks, for chat models that support rounds (mai_cascade, vllm). Round 0 has the E
    or R prompt; round 1 has the Stage 2 prompt with its response. Later rounds return the tuple (messages, terminal,
    previous outputs, round info) that lmms-eval requires."""
    if not round_idx or not previous_output:
        return doc_to_messages(doc, lmms_eval_specific_kwargs)
    if round_idx > 1:
        return None, True, previous_output, previous_round_info
    benchmark = lmms_eval_specific_kwargs["benchmark"]
    ending = prompts.stage2(previous_output[-1], BENCHMARKS[benchmark].answer_form(doc))
    return _messages(benchmark, doc, ending), False, previous_output, previous_round_info


def shapes_doc_to_visual(doc: Doc) -> list[Any]:
    """Return the only image of a document of the demo's benchmark, 96 x 96 px."""
    return [doc["image"].convert("RGB")]


def shapes_doc_to_text(doc: Doc, lmms_eval_specific_kwargs: Mapping[str, Any]) -> str:
    """Return the question, its options if it has any, and the instruction, each on its own line."""
    options = [f"{letter}. {doc[letter]}" for letter in "ABCD" if doc[letter]]
    return "\n".join([doc["question"], *options]) + str(lmms_eval_specific_kwargs["post_prompt"])


class AnswerFilter(Filter):
    """Extracts the answer that lmms-eval scores: the content of the last `[[...]]`, or the whole text without brackets.
    The cascade's verification extracts it with the same function."""

    def apply(self, resps: Iterable[list[Any]], docs: Any) -> list[list[str]]:
        return [[extract_answer(str(response)) for response in responses] for responses in resps]


class TwoStageAnswerFilter(AnswerFilter):
    """Extracts the answer of `_s2` tasks, whose responses are lists of rounds. Refuses a response of one round, which
    would be reported as the score of a two-stage task."""

    def apply(self, resps: Iterable[list[Any]], docs: Any) -> list[list[str]]:
        documents = [*resps]
        if not all(isinstance(rounds, list) and len(rounds) > 1 for rounds in itertools.chain(*documents)):
            raise ValueError(
                "An _s2 task got an answer of one round, because this model does not support "
                "generate_until_multi_round. Use mai_cascade or vllm, or use the task without _s2."
            )
        return super().apply([[rounds[-1] for rounds in responses] for responses in documents], docs)


def _call(benchmark: str, name: str, *arguments: Any) -> Any:
    module, _, prefix = BENCHMARKS[benchmark].functions.rpartition(".")
    return getattr(importlib.import_module(module, "lmms_eval.tasks"), f"{prefix}_{name}")(*arguments)


def _instruction(benchmark: str, variant: str, doc: Doc) -> str:
    return prompts.instruction(prompts.VARIANTS[variant][0], BENCHMARKS[benchmark].answer_form(doc))


def _question(benchmark: str, doc: Doc) -> str:
    """Return the question as lmms-eval's own task writes it, without an instruction.

    lmms-eval's function gets our instruction in place of its own, which is then cut off. So it removes RealWorldQA's
    sentence about letters, and writes the line breaks of MMBench and MMMU before the instruction."""
    marker = _instruction(benchmark, "s", doc)
    if benchmark == "mmmu_val":
        # mmmu_doc_to_text is not used: after the first call of mmmu_doc_to_messages, a flag of their module makes it
        # replace <image 1>.
        from lmms_eval.tasks.mmmu.utils import construct_prompt

        text: str = construct_prompt(doc, marker, marker)
    else:
        text = _call(benchmark, "doc_to_text", doc, {"pre_prompt": "", "post_prompt": "\n" + marker})
    if benchmark == "realworldqa":  # lmms-eval removes only the sentence about letters
        text = text.replace("Please answer directly with a single word or number.", "")
    if not text.endswith(marker):  # a stage would get two instructions
        raise ValueError(f"doc_to_text of {benchmark} does not end with its post_prompt")
    return text.removesuffix(marker)


def _messages(benchmark: str, doc: Doc, ending: str) -> Messages:
    if benchmark == "mmmu_val":  # its images are between the parts of the text
        marker = _instruction(benchmark, "s", doc)
        options = {"multiple_choice_prompt": marker, "open_ended_prompt": marker, "prompt_type": "format"}
        *blocks, last = _call(benchmark, "doc_to_messages", doc, options)[0]["content"]
        question = last["text"].removesuffix(marker)
    else:
        blocks = [{"type": "image", "url": image} for image in _call(benchmark, "doc_to_visual", doc)]
        question = _question(benchmark, doc)
    texts = [{"type": "text", "text": text} for text in (question, ending)]
    return [{"role": "user", "content": [*blocks, *texts]}]
