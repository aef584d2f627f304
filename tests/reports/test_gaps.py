"""Missing and broken files, and runs that do not belong together: each gap is one sentence, and the rest is used."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support.folders import LARGE, POPE, SMALL, Answers, World, call, line, write_run
from support.tables import value

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reports.build import NO_CASCADE, read, report
from lmms_eval_mai.reports.folders import read_runs
from lmms_eval_mai.reports.methods import Method
from lmms_eval_mai.reports.runs import Runs


def test_folders_without_a_run_are_an_error_and_beside_one_with_runs_a_gap(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"does not exist\. Give the --output_path of lmms-eval commands\."):
        read_runs([tmp_path / "nothing"])
    with pytest.raises(ArgumentError, match=r"there is no run of lmms-eval\. Run lmms-eval with --output_path and"):
        report([tmp_path])
    file = POPE.write(tmp_path / "runs", "cascade")
    (tmp_path / "empty").mkdir()
    found = read_runs([tmp_path, tmp_path / "runs", file, tmp_path / "empty"])  # the run is read once
    assert len(found.runs) == 1
    assert found.gaps == [f"{tmp_path / 'empty'} has no run that can be used: it has no results file of lmms-eval 0.7."]


def test_a_run_without_samples_has_its_total_score_and_an_interval_if_it_is_a_share_of_documents(
    tmp_path: Path,
) -> None:
    documents = [Answers("A", "A", "A", "A", "A")] * 10
    pope = POPE.write(tmp_path, "large", metrics={"pope_f1_score": 0.861, "pope_f1_score_stderr": 0.1})
    World("realworldqa", documents).write(tmp_path, "large", metrics={"exact_match": 0.7}, time="20260102_000000")
    # 70% of the questions are right. The results file has the number of their rotations.
    World("mmbench_en_dev", documents).write(tmp_path, "large", metrics={"gpt_eval_score": 70}, time="20260103_000000")
    for file in tmp_path.glob("*_samples_*"):
        file.unlink()
    found = read_runs([tmp_path])
    assert found.gaps[0] == (
        f"{pope}: pope_s has no samples file, so only its total score is used. Run lmms-eval with --log_samples."
    )
    f1, share, questions = (Runs([run]).score(run) for run in found.runs)
    assert f1 is not None and (f1.value, f1.n, f1.low) == (pytest.approx(86.1), 4, None)
    assert questions is not None and (questions.value, questions.low) == (70, None)
    assert share is not None and share.low is not None and share.high is not None and share.low < 70 < share.high


def test_broken_lines_are_counted_and_the_others_are_used(tmp_path: Path) -> None:
    POPE.write(tmp_path, "large", number=6)
    (file,) = tmp_path.glob("*_samples_*")
    file.write_text(file.read_text() + '{"doc_id": 4, "target"')
    found = read_runs([tmp_path])
    assert found.runs[0].documents == 4
    assert found.gaps == [
        f"{file}: 1 line cannot be read. Did the run break off?",
        f"{file}: 2 of 6 documents have no line. Did the run break off?",
    ]
    POPE.write(tmp_path, "large", number=6, not_answered=2)
    assert read_runs([tmp_path]).gaps == [f"{file}: 2 of 6 documents have no line, because they failed."]


def test_answers_without_a_score_or_a_trace_and_samples_without_results_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "cached", "pope_s", [line(0, "yes", "yes", 1.0)], mode="cascade")
    one = line(0, "yes", "yes", 1.0, exit="large", readable=True, answers=[], calls=[call("large", "short", "yes")])
    one["token_counts"][0]["repeats"] = [one["token_counts"][0].copy()]  # without a parsed answer
    write_run(tmp_path / "repeats", "pope_s", [one], mode="large")
    orphan = tmp_path / "cached" / "20260202_000000_samples_pope_s.jsonl"
    orphan.write_text("{}\n")
    cached, broken_off, repeats = read_runs([tmp_path / "cached", tmp_path / "repeats"]).gaps
    assert "1 document without a trace, because lmms-eval's response cache answered." in cached
    assert broken_off == f"{orphan} is not used: it has no results file beside it, so its run broke off while it wrote."
    assert repeats.endswith("score left out.") and len(read_runs([tmp_path / "repeats"]).runs[0].samples) == 1


def test_files_of_another_version_of_lmms_eval_are_used_with_a_sentence(tmp_path: Path) -> None:
    POPE.write(tmp_path / "old", "cascade")
    old = tmp_path / "old" / "0101_results.json"
    old.write_text(json.dumps({"results": {"pope": {"pope_f1_score,none": 0.5}}, "model_configs": {"model": "llava"}}))
    found = read_runs([tmp_path])
    assert [run.metrics for run in found.runs if run.file == old] == [{"pope_f1_score": 0.5}] and len(found.runs) == 2
    assert f"{old} is of another version of lmms-eval: only the fields that this version knows are used." in found.gaps


NO_RESULTS = "it is not a results file of lmms-eval 0.7, or it is broken"
NO_FIGURES = "it is broken, or of another version of lmms-eval-mai"


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        *(("x_results.json", text, NO_RESULTS) for text in ("", "[1, 2]", '{"results": 3}', '{"results"')),
        *(("20260101_000000_mai_cascade.json", text, NO_FIGURES) for text in ("{", "[1]", '{"format": 99}')),
    ],
)
def test_a_file_that_cannot_be_used_is_a_gap_and_without_figures_the_arguments_name_the_method(
    tmp_path: Path, name: str, text: str, fault: str
) -> None:
    POPE.write(tmp_path, "cascade", model_args="pair=qwen3vl-2b-8b")
    (tmp_path / name).write_text(text)
    found = read_runs([tmp_path])
    assert [run.method.model for run in found.runs] == [LARGE]
    assert found.gaps == [f"{tmp_path / name} is not used: {fault}."]


@pytest.mark.parametrize("fields", [{"mode": ["x"]}, {"engines": 3}, {"tasks": {"pope_s": "x"}}])
def test_a_run_with_broken_fields_is_left_out_and_the_others_are_used(tmp_path: Path, fields: dict[str, Any]) -> None:
    POPE.write(tmp_path / "whole", "transfer")
    broken = POPE.write(tmp_path / "broken", "cascade")
    (file,) = (tmp_path / "broken").glob("*_mai_cascade.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    found = read_runs([tmp_path])
    assert [run.method.mode for run in found.runs] == ["transfer"]
    assert found.gaps == [f"{broken}: pope_s is not used, because a field of the results or of the figures is broken."]


def test_scores_that_are_not_numbers_are_left_out_and_one_that_contradicts_the_samples_is_a_gap(
    tmp_path: Path,
) -> None:
    metrics = {"pope_f1_score": 0.9, "pope_accuracy": "N/A", "pope_recall": float("nan")}
    file = POPE.write(tmp_path, "large", metrics=metrics)  # type: ignore[arg-type]
    runs = read([tmp_path])
    (run,), (gap,) = runs.runs.values(), runs.gaps
    assert run.metrics == {"pope_f1_score": 0.9}
    assert gap.startswith(f"{file}: the samples of pope_s give a score of 66.67, and the results file has 90.00. ")


# --- runs that do not belong together ---


def test_runs_with_the_same_limit_share_one_short_sentence(tmp_path: Path) -> None:
    for day, mode in enumerate(("small", "large", "transfer"), start=1):
        POPE.write(tmp_path, mode, time=f"2026010{day}_000000", original=9)
    POPE.write(tmp_path, "large", suffix="r", time="20260105_000000")
    assert read([tmp_path]).gaps == ["POPE: there are runs on only 4 of 9 documents (--limit)."]


def test_of_two_runs_of_a_method_the_one_with_more_documents_is_used(tmp_path: Path) -> None:
    more = POPE.write(tmp_path, "cascade", time="20260102_000000")
    less = World("pope", POPE.documents[:2]).write(tmp_path, "cascade", time="20260103_000000")
    runs = read([tmp_path])
    assert [run.file for run in runs.of("cascade")] == [more] and [run.file for run in runs.unused] == [less]
    sentence = f"{less}: pope_s is not used, because {more} is a run of the same method (MAI 8B + 2B-R) on 4 documents."
    assert runs.gaps == [sentence]


def test_short_answers_of_a_cascade_are_used_if_it_has_more_documents_than_a_run_of_the_model(tmp_path: Path) -> None:
    cascade = POPE.write(tmp_path, "cascade")
    alone = World("pope", POPE.documents[:3]).write(tmp_path, "large", time="20260102_000000")
    POPE.write(tmp_path, "small", time="20260103_000000")
    runs = read([tmp_path])
    large, small = (runs.get("pope", Method("alone", model, "", "S")) for model in (LARGE, SMALL))
    assert large is not None and large.derived and large.documents == 4
    assert small is not None and not small.derived
    (gap,) = runs.gaps
    assert gap.startswith(f"{alone}: pope_s is not used, because {cascade} has the short answers of the same method ")


def test_runs_with_different_documents_are_compared_on_those_that_both_have(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade")
    first, second, third, _ = POPE.documents
    other_gold = dataclasses.replace(second, gold="yes")
    World("pope", [first, other_gold, third]).write(tmp_path, "transfer", time="20260102_000000")
    World("pope", POPE.documents[:2]).write(tmp_path, "large", "r", time="20260103_000000")
    found = report([tmp_path])
    rows = {row[2]: row for row in found.table("comparisons").rows}
    assert (rows["Full RT 8B + 2B-R"][3], rows["8B-R"][3]) == (2, 2)
    assert (
        "MAI 8B + 2B-R and Full RT 8B + 2B-R on POPE have 4 and 3 documents; they are compared on the 2 that both have."
        in found.gaps
    )
    assert "POPE: the paper has 9000 documents and these runs 2, 3, 4" in " ".join(found.gaps)


def test_runs_of_other_models_may_have_any_number_of_documents_and_are_not_compared_with_mai(tmp_path: Path) -> None:
    dataclasses.replace(POPE, small="a/tiny", large="a/big").write(tmp_path, "transfer")
    assert not [gap for gap in report([tmp_path]).gaps if "the paper has" in gap]
    POPE.write(tmp_path, "cascade", time="20260102_000000")
    dataclasses.replace(POPE, large="a/big").write(tmp_path, "small", time="20260103_000000")
    found = report([tmp_path])
    (gap,) = [gap for gap in found.gaps if "no cascade has" in gap]
    assert gap == "POPE: no cascade has the models of Full RT big + tiny-R, so MAI is not compared with them."
    assert {row[2] for row in found.table("comparisons").rows} == {"2B-S", "8B-S"}


def test_a_run_without_labels_is_compared_by_accuracy(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade")
    lines = [line(doc_id, one.gold, "yes", float(one.gold == "yes")) for doc_id, one in enumerate(POPE.documents)]
    write_run(tmp_path, "pope", lines, model="vllm", time="20260102_000000")
    (row,) = [row for row in report([tmp_path]).table("comparisons").rows if "own prompt" in str(row[2])]
    assert value(row[4]) == 25  # right answers, not F1


def test_a_report_without_a_cascade_says_so_once_and_one_with_a_cascade_names_nothing_that_it_lacks(
    tmp_path: Path,
) -> None:
    World("shapes", POPE.documents).write(tmp_path, "large")
    assert report([tmp_path]).gaps == (NO_CASCADE,)
    World("shapes", POPE.documents).write(tmp_path, "cascade", time="20260102_000000")
    assert report([tmp_path]).gaps == ()


GUESSES = World(
    "shapes",
    [Answers("red", "red", "red", "red", "red", fields=(("images", [name]),)) for name in ("a", "b", "c", "d")],
)


def test_a_score_on_images_that_chose_the_threshold_is_marked(tmp_path: Path, task_manager: Any) -> None:
    GUESSES.write(tmp_path, "cascade", model_args="verify=confidence,min_confidence=file.json")
    file = tmp_path / "20260101_000000_mai_cascade.json"
    figures = json.loads(file.read_text())
    for images, sentence in ((["b", "d", "x"], "2 of the 4 scored answers"), (["x"], None)):
        figures["first_check"] = {"verify": "confidence", "calibration": {"images": images}}
        file.write_text(json.dumps(figures))
        marked = [gap for gap in report([tmp_path]).gaps if "chose its threshold" in gap]
        assert [gap for gap in marked if sentence and sentence in gap] == marked
        assert bool(marked) == (sentence is not None)
