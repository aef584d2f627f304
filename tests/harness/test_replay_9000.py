"""Published answers of real models at full size: LLaVA-1.5-7B as the small and -13B as the large model on POPE."""

import json
import re
import resource
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

TREE = "data/placeholder"
MIB = 1 << 20
Row = dict[str, Any]


def object_of(question: str) -> str:
    """Return the object in a POPE question. Some published files have "an", some have a typing error."""
    found = re.fullmatch(r"Is there an? (.+) in the iman?ge\?", question)
    assert found, question
    return found.group(1)


def official_questions(shared: Path) -> list[Row]:
    (file,) = (shared / TREE / "lmms-lab-encoder" / "POPE" / "data").glob("*.parquet")
    return parquet.read_table(file, columns=["question", "answer", "image_source", "category"]).to_pylist()


def published_answers(shared: Path, file: str, questions: list[Row]) -> list[str]:
    """Return a model's answers to the questions, in order; empty if its authors published no answer."""
    records = [json.loads(line) for line in (shared / "data" / "replay" / file).read_text().splitlines()]
    known = {(r["category"], r["image"][: -len(".jpg")], object_of(r["question"])): r["response"] for r in records}
    return [known.get((q["category"], q["image_source"], object_of(q["question"])), "") for q in questions]


def write_script(path: Path, texts: list[str], stages: tuple[str, ...]) -> Path:
    rows = (
        {"task": "pope_s", "doc_id": doc_id, "stage": stage, "text": text, "prompt_tokens": 9, "output_tokens": 1}
        for doc_id, text in enumerate(texts)
        for stage in stages
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def f1(predictions: list[str], gold: list[str]) -> float:
    both = sum(p == g == "yes" for p, g in zip(predictions, gold, strict=True))
    return 2 * both / (predictions.count("yes") + gold.count("yes"))


@pytest.mark.long
def test_replay_of_9000_answers_matches_an_independent_score_and_agreement_rate_and_needs_constant_memory(
    shared: Path, task_manager: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lmms_eval.evaluator import simple_evaluate

    questions = official_questions(shared)
    gold = [question["answer"] for question in questions]
    small = published_answers(shared, "pope__llava-v1.5-7b_greedy.jsonl", questions)
    large = published_answers(shared, "pope__llava-v1.5-13b.jsonl", questions)
    assert (len(questions), small.count(""), large.count("")) == (9000, 0, 90)

    # The thinking was not published. Each model repeats its answer, so every sample ends with the large model's one.
    scripts = (
        write_script(tmp_path / "7b.jsonl", small, ("short", "think")),
        write_script(tmp_path / "13b.jsonl", large, ("short", "transfer")),
    )
    monkeypatch.chdir(shared / TREE)
    arguments = "engine=scripted,small={},large={},store=off".format(*scripts)
    given = {"model": "mai_cascade", "model_args": arguments, "tasks": ["pope_s"], "task_manager": task_manager}
    peaks = []
    for limit in (500, None):
        results = simple_evaluate(**given, limit=limit, log_samples=True)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    grown = peaks[1] - peaks[0]

    answers = [text.lower() for text in large]
    scores = results["results"]["pope_s"]
    assert scores["pope_accuracy,none"] == sum(s == g for s, g in zip(answers, gold, strict=True)) / 9000
    assert scores["pope_f1_score,none"] == pytest.approx(f1(answers, gold))

    agreeing = sum(a.lower() == b.lower() for a, b in zip(small, large, strict=True))
    exits = [one["token_counts"][0]["exit"] for one in results["samples"]["pope_s"]]
    assert len(exits) == 9000
    assert exits.count("agree_short") == agreeing
    assert exits.count("transfer") == 9000 - agreeing
    usage = results["usage"]["by_source"]
    assert usage["small"]["n_api_calls"] == usage["large"]["n_api_calls"] == 9000 + exits.count("transfer")

    assert grown < 300 * MIB, f"peak memory exceeds that of 500 samples by {grown / MIB:.0f} MiB"
    print(f"agreement {agreeing / 9000:.4f}, F1 {scores['pope_f1_score,none']:.4f}, memory +{grown / MIB:.0f} MiB")
