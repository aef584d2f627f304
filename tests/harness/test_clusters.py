"""lmms-eval's own error of POPE, whose questions share images."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyarrow import parquet
from support.processes import POPE, large_pope

ROWS = 120


def test_questions_about_one_image_are_one_cluster(
    evaluate: Callable[..., Any],
    write_script: Callable[..., Path],
    drawn_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten questions about each of the twelve images."""
    data = large_pope(drawn_data, tmp_path / "pope", ROWS)
    monkeypatch.chdir(data)
    (file,) = (data / POPE / "data").glob("*.parquet")
    questions = parquet.read_table(file, columns=["answer", "image_source"]).to_pandas()
    # Every question about every second image has the right answer: only the number of images counts.
    right = questions.image_source.rank(method="dense") % 2
    texts = questions.answer.where(right == 1, questions.answer.map({"yes": "no", "no": "yes"}))
    script = write_script(
        "large",
        [{"task": "pope_s", "doc_id": i, "stage": "short", "text": f"[[{text}]]"} for i, text in enumerate(texts)],
    )
    results = evaluate(["pope_s"], engine="scripted", large=script, mode="large", time_scale=0, store="off")
    scores = results["results"]["pope_s"]
    assert scores["pope_accuracy,none"] == right.mean() == 0.5
    images = questions.image_source.nunique()
    expected = pd.Series([0.0, 1.0] * (images // 2)).sem()
    assert scores["pope_accuracy_stderr_clustered,none"] == pytest.approx(expected, rel=0.1)
    assert scores["pope_accuracy_stderr_clt,none"] == pytest.approx(0.5 / math.sqrt(ROWS), rel=0.01)
