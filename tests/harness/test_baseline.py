"""lmms-eval's `--baseline`: two runs are compared sample by sample, with the file of samples that lmms-eval wrote."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.tasks import BUILT_IN, Loaded

TASKS = [f"{benchmark}_s" for benchmark in BUILT_IN]


def wrong(gold: str) -> str:
    """Return a wrong answer that the scorer can read: MMMU's scorer would guess."""
    return {"yes": "no", "no": "yes", "A": "B"}.get(gold, "A" if gold in "BCD" else "98765")


@pytest.fixture
def script(tasks: Loaded, write_script: Any) -> Any:
    """Return a function that writes a script of right answers, with wrong answers to every n-th document."""

    def write(name: str, every: int) -> Path:
        rows = []
        for task in TASKS:
            for i, doc in enumerate(tasks.chat[task].test_docs()):
                gold = doc["answers"][0] if "answers" in doc else doc["answer"]
                text = wrong(gold) if i % every == 0 else gold
                counts = {"prompt_tokens": 9, "output_tokens": 2}
                rows.append({"task": task, "doc_id": i, "stage": "short", "text": f"[[{text}]]", **counts})
        return Path(write_script(name, rows))

    return write


@pytest.mark.slow
def test_every_task_can_be_compared_with_the_samples_of_an_earlier_run(
    evaluate: Any, script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lmms_eval.loggers import EvaluationTracker

    output: Any = SimpleNamespace(output_path=str(tmp_path), process_with_media=False)  # MMBench writes ./submissions
    options: dict[str, Any] = {"cli_args": output, "evaluation_tracker": EvaluationTracker(output_path=str(tmp_path))}
    options["bootstrap_iters"] = 0
    arguments = {"engine": "scripted", "mode": "large", "journal": "off"}

    first = evaluate(TASKS, options, large=script("first", 3), **arguments)
    options["evaluation_tracker"].save_results_aggregated(first, first["samples"], "first")
    for task in TASKS:
        options["evaluation_tracker"].save_results_samples(task, first["samples"][task])
    for task in TASKS:
        (file,) = tmp_path.rglob(f"*_samples_{task}.jsonl")
        second = evaluate([task], {**options, "baseline": str(file)}, large=script("second", 12), **arguments)
        scores = second["results"][task]
        # 4 of 12 answers were wrong, and now 1 is.
        assert scores["paired_baseline_score"] == pytest.approx(100 * 8 / 12), task
        assert (scores["paired_ci_lower"] + scores["paired_ci_upper"]) / 2 == pytest.approx(100 * 3 / 12), task
        assert second["efficiency"]["overall"]["total_correct_score"] == 11
