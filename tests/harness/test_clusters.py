"""lmms-eval's own error of POPE, whose questions share images."""

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyarrow import parquet

from lmms_eval_mai.harness.model import MaiCascade


@pytest.fixture
def questions(shared: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """Real questions of POPE, 18 about each image."""
    folder = shared / "data" / "real"
    if not folder.is_dir():
        pytest.skip(f"needs {folder}")
    monkeypatch.chdir(folder)
    (file,) = (folder / "lmms-lab-encoder" / "POPE" / "data").glob("*.parquet")
    return parquet.read_table(file, columns=["answer", "image_source"]).to_pandas()


def test_questions_about_one_image_are_one_cluster(questions: pd.DataFrame, task_manager: Any, tmp_path: Path) -> None:
    from lmms_eval.evaluator import simple_evaluate

    assert (questions.image_source.value_counts() == 18).all()
    # Every question about every second image has the right answer: only the number of images counts.
    right = questions.image_source.rank(method="dense") % 2
    wrong = questions.answer.map({"yes": "no", "no": "yes"})
    texts = questions.answer.where(right == 1, wrong)
    script = tmp_path / "large.jsonl"
    records = [{"task": "pope_s", "doc_id": i, "stage": "short", "text": f"[[{t}]]"} for i, t in enumerate(texts)]
    script.write_text("".join(json.dumps(record) + "\n" for record in records))
    model = MaiCascade(engine="scripted", large=str(script), mode="large", time_scale=0, store="off")
    results = simple_evaluate(model=model, tasks=["pope_s"], task_manager=task_manager, batch_size=1)
    assert results is not None
    scores = results["results"]["pope_s"]
    assert scores["pope_accuracy,none"] == right.mean()
    images = questions.image_source.nunique()
    assert scores["pope_accuracy_stderr_clustered,none"] == pytest.approx(0.5 / math.sqrt(images), rel=0.01)
    assert scores["pope_accuracy_stderr_clt,none"] == pytest.approx(right.sem())
