"""Failed samples: they are counted and named, and they are never scored."""

import re
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from support.pope_scripts import pope_scripts, record

from lmms_eval_mai.errors import EngineCrashed, TooManyErrors


@pytest.mark.parametrize(
    ("tasks", "answered", "max_errors", "message"),
    [
        (["pope_s"], 11, 0, "1 of 12 samples failed, and max_errors=0 allows 0"),
        (["pope_s"], 9, 0.2, "3 of 12 samples failed, and max_errors=0.2 allows 2"),
        # One-stage and two-stage tasks reach the model in two calls of lmms-eval, here with two errors each.
        (["pope_s", "pope_r_s2"], 10, 3, "4 of 24 samples failed, and max_errors=3 allows 3"),
    ],
)
def test_run_with_more_errors_than_max_errors_stops_and_names_the_failed_samples(
    evaluate: Any, write_script: Any, tasks: list[str], answered: int, max_errors: float, message: str
) -> None:
    answers = [record(task, doc_id, "short", "[[Yes]]") for task in tasks for doc_id in range(answered)]
    script = write_script("both", answers)
    with pytest.raises(TooManyErrors, match=message) as error:
        evaluate(tasks, engine="scripted", small=script, large=script, max_errors=max_errors)
    assert any(f"doc_id {doc_id} and stage 'short'" in str(error.value) for doc_id in range(answered, 12))
    assert "To resume, run the same command with the same models again." in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "max_errors"), [("pope_s", 3), ("pope_r_s2", 0.25)])
def test_failed_samples_are_counted_and_not_scored(
    evaluate: Any,
    write_script: Any,
    capsys: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    max_errors: float,
) -> None:
    # With a run id, lmms-eval reads the cache's log of the previous run, in which blank texts count as answers.
    monkeypatch.setenv("LMMS_CACHE_RUN_ID", "the-same")
    scripts = pope_scripts(write_script, task, rows=9)
    results = evaluate([task], {"use_cache": str(tmp_path / "cache")}, max_errors=max_errors, **scripts)
    assert results["results"][task]["pope_accuracy,none"] == 1.0
    assert sorted(sample["doc_id"] for sample in results["samples"][task]) == list(range(9))
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if task in line and "%" in line)
    assert [cell.strip() for cell in row.strip("|").split("|")][:4] == [task, "9", "3", "3 (33.33%)"]
    assert "3 samples have no answer and are left out of all scores: 3 MissingAnswer" in printed
    others = rf"2 more with a similar message: {task} document (\d+), {task} document (\d+)\."
    named = re.search(rf"  MissingAnswer: {tmp_path}/.* document (\d+), large short\. .*{others}", printed)
    assert named is not None and {int(number) for number in named.groups()} == {9, 10, 11}
    assert results["throughput"]["avg_not_answered_share"] == 3 / 12
    # lmms-eval's response cache did not store them as answers: with complete scripts, they are answered.
    whole = pope_scripts(write_script, task, rows=12)
    again = evaluate([task], {"use_cache": str(tmp_path / "cache")}, max_errors=max_errors, **whole)
    assert len(again["samples"][task]) == 12 and again["usage"]["by_source"]["large"]["n_api_calls"] == 4


def test_error_of_an_engine_without_restarts_names_the_samples_that_failed_before(
    evaluate: Any, write_script: Any
) -> None:
    answers = [record("pope_s", doc_id, "short", "[[Yes]]", seconds=0.01) for doc_id in range(3)]
    answers[0]["fault"], answers[2]["fault"] = "error", "death"
    script = str(write_script("both", answers))
    message = (
        r"^The (small|large) engine is not restarted: no restarts left \(engine_restarts=0\)\. .* The last error: .*\n"
        r"Before this error, 1 sample failed:\n  SampleError: pope_s document 0, "
    )
    with pytest.raises(EngineCrashed, match=message):
        evaluate(["pope_s"], {"limit": 3}, engine="scripted", small=script, large=script, max_errors=3,
                 engine_restarts=0, max_open_samples=1)  # fmt: skip


def test_document_fails_if_one_of_its_repeats_fails(evaluate: Any, write_script: Any) -> None:
    answers = [
        record("pope_s", doc_id, "short", "[[Yes]]", repeat=repeat)
        for doc_id in range(3)
        for repeat in range(2)
        if (doc_id, repeat) != (1, 1)
    ]
    scripts = {side: str(write_script(side, answers)) for side in ("small", "large")}
    options = {"repeats": 2, "limit": 3}
    results = evaluate(["pope_s"], options, engine="scripted", max_errors=1, **scripts)
    assert sorted(sample["doc_id"] for sample in results["samples"]["pope_s"]) == [0, 2]


def test_a_broken_image_is_named_in_one_sentence(
    evaluate: Any, write_script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = pope_scripts(write_script, "pope_s")
    drawn = parquet.read_table("lmms-lab-encoder/POPE/data/test.parquet").slice(0, 2)
    rows = drawn.to_pylist()
    rows[1]["image"]["bytes"] = b"not an image"
    home = tmp_path / "lmms-lab-encoder" / "POPE"
    (home / "data").mkdir(parents=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=drawn.schema), home / "data" / "broken.parquet")
    # The cache of datasets uses the file name as key, so a second test.parquet would be read from the cache.
    readme = Path("lmms-lab-encoder/POPE/README.md").read_text()
    (home / "README.md").write_text(readme.replace("test.parquet", "broken.parquet"))
    monkeypatch.chdir(tmp_path)
    message = r"UnreadableImage: pope_s document 1: its image cannot be read .* Repair the dataset"
    with pytest.raises(TooManyErrors, match=message):
        evaluate(["pope_s"], **scripts)
