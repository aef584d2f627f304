"""The score of one answer by lmms-eval's scorer of each benchmark."""

from typing import Any

import pandas
from support.documents import MMMU_OPEN

Doc = dict[str, Any]


def lmms_evals_score(benchmark: str, doc: Doc, answer: str) -> float:
    """Return the score, 0 to 1. lmms-eval guesses an MMMU option at random if it cannot read the answer."""
    return float(globals()[f"_{benchmark}"](doc, [answer.strip()]))


def _pope(doc: Doc, results: list[str]) -> float:
    from lmms_eval.tasks.pope.utils import pope_process_results

    return pope_process_results(doc, results)["pope_accuracy"]["score"]


def _mmmu_val(doc: Doc, results: list[str]) -> float:
    from lmms_eval.tasks.mmmu.utils import evaluate_mmmu, mmmu_process_results

    return evaluate_mmmu([mmmu_process_results(doc, results)["mmmu_acc"]])[1]["acc"]


def _mmbench_en_dev(doc: Doc, results: list[str]) -> float:
    from lmms_eval.tasks.mmbench.en_utils import mmbench_evaluator, mmbench_process_results

    row = mmbench_process_results(doc, results)["gpt_eval_score"]
    return mmbench_evaluator.eval_sub_data(pandas.DataFrame([row]), {row["index"]: row["answer"]}, True)


def _chartqa(doc: Doc, results: list[str]) -> float:
    from lmms_eval.tasks.chartqa.utils import chartqa_process_results

    return chartqa_process_results(doc, results)["relaxed_overall"]


def _infovqa_val(doc: Doc, results: list[str]) -> float:
    from lmms_eval.api.metrics import anls

    return anls(references=list(doc["answers"]), predictions=results)["anls"]


def _realworldqa(doc: Doc, results: list[str]) -> float:
    from lmms_eval.tasks.realworldqa.utils import realworldqa_process_results

    return realworldqa_process_results(doc, results)["exact_match"]


def _shapes(doc: Doc, results: list[str]) -> float:
    from lmms_eval.api.metrics import exact_match_hf_evaluate

    answers = {"predictions": results, "references": [doc["answer"]]}
    return exact_match_hf_evaluate(**answers, ignore_case=True, ignore_punctuation=True)["exact_match"]


def scored_doc(benchmark: str, record: Doc) -> Doc:
    """Return the fields of a document that the scorer of the benchmark reads. `record`: `qid`, `gold`, `type`,
    `question_type` and `options`."""
    gold = {"answer": record["gold"]}
    if benchmark == "mmmu_val":
        choice = {"question_type": "multiple-choice", "options": str(list(record["options"].values()))}
        own = MMMU_OPEN if record["question_type"] == "short-answer" else choice
        return {**own, "id": record["qid"], **gold}
    if benchmark == "mmbench_en_dev":
        columns = {letter: record["options"].get(letter, "nan") for letter in "ABCD"}
        names = ("question", "hint", "source", "split", "category", "L2-category")
        return {"index": int(record["qid"]), **dict.fromkeys(names, ""), **columns, **gold}
    return {"question_id": record["qid"], "type": record.get("type", ""), **gold}
