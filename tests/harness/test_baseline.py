"""lmms-eval's `--baseline`: two runs are compared sample by sample, with the file of samples that lmms-eval wrote. It
finds a score in the samples of POPE; in those of the other benchmarks it finds none, as with lmms-eval's own tasks."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.tasks import Loaded


@pytest.fixture
def script(tasks: Loaded, write_script: Any) -> Any:
    """Return a function that writes a script of right answers, with wrong answers to every n-th document."""

    def write(name: str, every: int) -> Path:
        rows = []
        for i, doc in enumerate(tasks.chat["pope_s"].test_docs()):
            wrong = {"yes": "no", "no": "yes"}[doc["answer"]]
            text = f"[[{wrong if i % every == 0 else doc['answer']}]]"
            counts = {"prompt_tokens": 9, "output_tokens": 2}
            rows.append({"task": "pope_s", "doc_id": i, "stage": "short", "text": text, **counts})
        return Path(write_script(name, rows))

    return write


@pytest.mark.slow
def test_a_pope_run_can_be_compared_with_the_samples_of_an_earlier_run(
    evaluate: Any, script: Any, tmp_path: Path
) -> None:
    from lmms_eval.loggers import EvaluationTracker

    output: Any = SimpleNamespace(output_path=str(tmp_path), process_with_media=False)
    tracker = EvaluationTracker(output_path=str(tmp_path))
    options: dict[str, Any] = {"cli_args": output, "evaluation_tracker": tracker, "bootstrap_iters": 0}
    arguments = {"engine": "scripted", "mode": "large", "store": "off"}

    first = evaluate(["pope_s"], options, large=script("first", 3), **arguments)
    tracker.save_results_aggregated(first, first["samples"], "first")
    tracker.save_results_samples("pope_s", first["samples"]["pope_s"])
    (file,) = tmp_path.rglob("*_samples_pope_s.jsonl")
    second = evaluate(["pope_s"], {**options, "baseline": str(file)}, large=script("second", 12), **arguments)
    scores = second["results"]["pope_s"]
    # 4 of 12 answers were wrong, and now 1 is.
    assert scores["paired_baseline_score"] == pytest.approx(100 * 8 / 12)
    assert (scores["paired_ci_lower"] + scores["paired_ci_upper"]) / 2 == pytest.approx(100 * 3 / 12)
    assert second["efficiency"]["overall"]["total_correct_score"] == 11
