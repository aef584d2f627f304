"""Scores of our tasks: lmms-eval's own scores of the benchmark, and a number `score` for each sample.

lmms-eval's `--baseline` compares two runs sample by sample. It needs one number per sample, and the scorers of MMMU and
MMBench have none. If a file of samples has no number whose name contains "score", `--baseline` compares the texts of
answer and target instead. This ignores ChartQA's tolerance, and finds no right answer in InfoVQA, whose target is a
list. `efficiency` in lmms-eval's results uses the same number.

`process_results` of a task file refers to one of these functions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lmms_eval_mai.paper.agreement import Doc
from lmms_eval_mai.paper.benchmarks import quiet_mmbench

Scores = Mapping[str, Any]


def pope(doc: Doc, results: Sequence[str]) -> Scores:
    """Return lmms-eval's scores of a POPE answer, and `score`: 1 if it is right."""
    from lmms_eval.tasks.pope.utils import pope_process_results

    scores = pope_process_results(doc, results)
    return {"score": scores["pope_accuracy"]["score"], **scores}


def mmmu_val(doc: Doc, results: Sequence[str]) -> Scores:
    """Return lmms-eval's scores of an MMMU answer, and `score`: 1 if it is right.

    lmms-eval guesses an option at random if it cannot read the answer. `score` is that of the same guess.
    """
    from lmms_eval.tasks.mmmu.utils import evaluate_mmmu, mmmu_process_results

    scores = mmmu_process_results(doc, results)
    return {"score": evaluate_mmmu([scores["mmmu_acc"]])[1]["acc"], **scores}


def mmbench_en_dev(doc: Doc, results: Sequence[str]) -> Scores:
    """Return what lmms-eval's static evaluator of MMBench needs, and `score`: 1 if the evaluator takes it as right."""
    import pandas
    from lmms_eval.tasks.mmbench.en_utils import mmbench_evaluator, mmbench_process_results

    scores = mmbench_process_results(doc, results)
    row = scores["gpt_eval_score"]
    with quiet_mmbench():
        right = mmbench_evaluator.eval_sub_data(pandas.DataFrame([row]), {row["index"]: row["answer"]}, True)
    return {"score": float(right), **scores}


def chartqa(doc: Doc, results: Sequence[str]) -> Scores:
    """Return lmms-eval's scores of a ChartQA answer, and `score`: 1 if it is right within 5%."""
    from lmms_eval.tasks.chartqa.utils import chartqa_process_results

    scores = chartqa_process_results(doc, results)
    return {"score": scores["relaxed_overall"], **scores}


def infovqa_val(doc: Doc, results: Sequence[str]) -> Scores:
    """Return the ANLS of an InfoVQA answer, 0 to 1, as `anls` and as `score`."""
    from lmms_eval.api.metrics import anls

    value = anls(references=list(doc["answers"]), predictions=[result.strip() for result in results])["anls"]
    return {"score": float(value), "anls": value}


def realworldqa(doc: Doc, results: Sequence[str]) -> Scores:
    """Return lmms-eval's score of a RealWorldQA answer as `exact_match` and as `score`: 1 if it is right."""
    from lmms_eval.tasks.realworldqa.utils import realworldqa_process_results

    scores = realworldqa_process_results(doc, results)
    return {"score": scores["exact_match"], **scores}


def shapes(doc: Doc, results: Sequence[str]) -> Scores:
    """Return lmms-eval's metric `exact_match` of a shapes answer, and the same value as `score`: 1 if it is right."""
    from lmms_eval.api.metrics import exact_match_hf_evaluate

    answers = {"predictions": [result.strip() for result in results], "references": [doc["answer"]]}
    value = float(exact_match_hf_evaluate(**answers, ignore_case=True, ignore_punctuation=True)["exact_match"])
    return {"score": value, "exact_match": value}
