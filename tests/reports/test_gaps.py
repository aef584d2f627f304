"""Missing and broken files, and runs that do not belong together: each gap is one sentence, and the rest is used."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support.folders import LARGE, POPE, SMALL, Answers, World, call, line, write_run

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reports.build import evidence, report
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.methods import Method
from lmms_eval_mai.reports.read import read


def test_folders_without_a_run_are_an_error_and_beside_one_with_runs_a_gap(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"does not exist\. Give the --output_path of lmms-eval commands\."):
        read([tmp_path / "nothing"])
    with pytest.raises(ArgumentError, match=r"there is no run of lmms-eval\. Run lmms-eval with --output_path and"):
        report([tmp_path])
    POPE.write(tmp_path / "runs", "cascade")
    (tmp_path / "empty").mkdir()
    found = read([tmp_path / "runs", tmp_path / "empty"])
    assert len(found.runs) == 1
    assert found.gaps == [f"{tmp_path / 'empty'} has no run that can be used: it has no results file of lmms-eval 0.7."]


def test_a_run_without_samples_gives_its_total_score(tmp_path: Path) -> None:
    file = POPE.write(tmp_path, "large", metrics={"pope_f1_score": 0.861, "pope_f1_score_stderr": 0.1})
    next(tmp_path.glob("*_samples_*")).unlink()
    found = read([tmp_path])
    assert found.gaps == [
        f"{file}: pope_s has no samples file, so only its total score is used. Run lmms-eval with --log_samples."
    ]
    score = Evidence(found.runs).score(found.runs[0])
    assert score is not None and (score.value, score.n, score.low) == (pytest.approx(86.1), 4, None)


def test_a_total_score_has_an_interval_without_samples_only_if_it_is_a_share_of_the_documents(tmp_path: Path) -> None:
    documents = [Answers("A", "A", "A", "A", "A")] * 10
    World("realworldqa", documents).write(tmp_path, "large", metrics={"exact_match": 0.7})
    # 70% of the questions are right. The results file has the number of their rotations.
    World("mmbench_en_dev", documents).write(tmp_path, "large", metrics={"gpt_eval_score": 70}, time="20260102_000000")
    for file in tmp_path.glob("*_samples_*"):
        file.unlink()
    shares, questions = (Evidence([run]).score(run) for run in read([tmp_path]).runs)
    assert shares is not None and shares.low is not None and shares.high is not None
    assert shares.low < 70 < shares.high
    assert questions is not None and (questions.value, questions.low, questions.standard_error) == (70, None, None)


def test_broken_and_repeated_lines_are_counted_and_the_others_are_used(tmp_path: Path) -> None:
    POPE.write(tmp_path, "large", number=6)
    (file,) = tmp_path.glob("*_samples_*")
    text = file.read_text()
    file.write_text(text + text.split("\n")[1] + "\n" + '{"doc_id": 4, "target"')
    found = read([tmp_path])
    assert found.runs[0].documents == 4
    assert found.gaps == [
        f"{file}: 1 line cannot be read. Did the run break off?",
        f"{file}: 1 line for a document that has one already; the last one is used.",
        f"{file}: 2 of 6 documents have no line. Did the run break off?",
    ]
    POPE.write(tmp_path, "large", number=6, not_answered=2)
    assert read([tmp_path]).gaps == [f"{file}: 2 of 6 documents have no line, because they failed."]


def test_samples_without_a_results_file_are_from_a_run_that_broke_off(tmp_path: Path) -> None:
    POPE.write(tmp_path, "large")
    orphan = tmp_path / "20260202_000000_samples_pope_s.jsonl"
    orphan.write_text("{}\n")
    (gap,) = read([tmp_path]).gaps
    assert gap == f"{orphan} is not used: it has no results file beside it, so its run broke off while it wrote."


def test_files_of_another_version_of_lmms_eval_give_their_scores(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade")
    old = tmp_path / "0101_results.json"
    old.write_text(json.dumps({"results": {"pope": {"pope_f1_score,none": 0.5}}, "model_configs": {"model": "llava"}}))
    found = read([tmp_path])
    assert [run.metrics for run in found.runs if run.file == old] == [{"pope_f1_score": 0.5}]
    assert (
        found.gaps[0] == f"{old} is of another version of lmms-eval: only the fields that this version knows are used."
    )


def test_a_run_with_another_version_of_lmms_eval_is_used_with_a_sentence(tmp_path: Path) -> None:
    for number, version in enumerate(("0.7.3", "0.9.1")):
        file = POPE.write(tmp_path, "small", time=f"2026010{number}_000000")
        figures = file.with_name(file.name.replace("results", "mai_cascade"))
        figures.write_text(json.dumps(json.loads(figures.read_text()) | {"lmms_eval_version": version}))
    found = read([tmp_path])
    assert len(found.runs) == 2
    assert found.gaps == [
        f"{file} is of lmms-eval 0.9.1: its fields may mean something else than those of lmms-eval 0.7."
    ]


def test_runs_with_the_same_limit_share_one_short_sentence(tmp_path: Path) -> None:
    def limits() -> list[str]:
        return [gap for gap in evidence([tmp_path])[0].gaps if "--limit" in gap]

    for day, mode in enumerate(("small", "large", "transfer", "cascade"), start=1):
        POPE.write(tmp_path, mode, time=f"2026010{day}_000000", original=9)
    assert limits() == ["POPE: all 4 runs have 4 of 9 documents (--limit)."]
    POPE.write(tmp_path, "large", suffix="r", time="20260105_000000")
    assert limits() == ["POPE: 2B-S, 8B-S, Full RT 8B + 2B-R and 1 more have 4 of 9 documents (--limit)."]


@pytest.mark.parametrize("text", ["", "[1, 2]", '{"results": 3}', '{"results"'])
def test_a_results_file_that_is_no_results_file_is_a_gap(tmp_path: Path, text: str) -> None:
    POPE.write(tmp_path, "cascade")
    other = tmp_path / "x_results.json"
    other.write_text(text)
    found = read([tmp_path])
    assert len(found.runs) == 1
    assert found.gaps == [f"{other} is not used: it is not a results file of lmms-eval 0.7, or it is broken."]


@pytest.mark.parametrize(
    ("text", "fault"),
    [('{"format": 99}', "its format is not known to this version of lmms-eval-mai"), ("{", "it is broken")],
)
def test_figures_that_cannot_be_read_are_a_gap_and_the_arguments_name_the_method(
    tmp_path: Path, text: str, fault: str
) -> None:
    POPE.write(tmp_path, "cascade", model_args="pair=qwen3vl-2b-8b")
    (file,) = tmp_path.glob("*_mai_cascade.json")
    file.write_text(text)
    found = read([tmp_path])
    assert found.runs[0].method.model == LARGE
    assert found.gaps == [f"{file} is not used: {fault}."]


@pytest.mark.parametrize("fields", [{"mode": ["x"]}, {"engines": 3}, {"tasks": {"pope_s": "x"}}])
def test_a_run_with_broken_fields_is_left_out_and_the_others_are_used(tmp_path: Path, fields: dict[str, Any]) -> None:
    POPE.write(tmp_path, "transfer", time="20260102_000000")
    broken = POPE.write(tmp_path, "cascade")
    (file,) = tmp_path.glob("20260101_000000_mai_cascade.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    found = read([tmp_path])
    assert [run.method.mode for run in found.runs] == ["transfer"]
    assert found.gaps == [f"{broken}: pope_s is not used, because a field of the results or of the figures is broken."]


def test_the_random_router_uses_the_documents_that_all_three_methods_have(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade")
    World("pope", POPE.documents[:3]).write(tmp_path, "large", time="20260102_000000")
    World("pope", POPE.documents[:2]).write(tmp_path, "transfer", time="20260103_000000")
    (row,) = report([tmp_path]).table("routers").rows
    assert row[4:6] == ("output tokens", 2)


def test_a_run_without_labels_is_compared_by_accuracy(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade")
    lines = [line(doc_id, one.gold, "yes", float(one.gold == "yes")) for doc_id, one in enumerate(POPE.documents)]
    write_run(tmp_path, "pope", lines, model="vllm", time="20260102_000000")
    (row,) = [row for row in report([tmp_path]).table("mai-against-others").rows if "own prompt" in str(row[2])]
    assert row[4:6] == (75.0, 50.0)  # right answers, not F1


def test_a_folder_that_is_given_twice_or_with_its_subfolder_is_read_once(tmp_path: Path) -> None:
    file = POPE.write(tmp_path / "a", "cascade")
    found = read([tmp_path, tmp_path / "a", file])
    assert (len(found.runs), found.gaps) == (1, [])


def test_scores_that_are_not_numbers_are_left_out(tmp_path: Path) -> None:
    metrics = {"pope_f1_score": float("nan"), "pope_accuracy": "N/A", "pope_recall": 0.5}
    POPE.write(tmp_path, "large", metrics=metrics)  # type: ignore[arg-type]
    assert read([tmp_path]).runs[0].metrics == {"pope_recall": 0.5}


def test_answers_of_the_response_cache_have_no_trace(tmp_path: Path) -> None:
    write_run(tmp_path, "pope_s", [line(0, "yes", "yes", 1.0)], mode="cascade")
    (gap,) = read([tmp_path]).gaps
    assert "1 document without a trace, because lmms-eval's response cache answered." in gap


def test_repeats_without_a_parsed_answer_are_left_out(tmp_path: Path) -> None:
    one = line(0, "yes", "yes", 1.0, exit="large", readable=True, answers=[], calls=[call("large", "short", "yes")])
    one["token_counts"][0]["repeats"] = [one["token_counts"][0].copy()]
    write_run(tmp_path, "pope_s", [one], mode="large")
    found = read([tmp_path])
    assert len(found.runs[0].samples) == 1 and found.gaps[0].endswith("score are left out: 1.")


def test_of_two_runs_of_a_method_the_one_with_more_documents_is_used(tmp_path: Path) -> None:
    more = POPE.write(tmp_path, "cascade", time="20260102_000000")
    less = World("pope", POPE.documents[:2]).write(tmp_path, "cascade", time="20260103_000000")
    runs, _ = evidence([tmp_path])
    assert [run.file for run in runs.of("cascade")] == [more] and [run.file for run in runs.unused] == [less]
    sentence = f"{less}: pope_s is not used, because {more} is a run of the same method (MAI 8B + 2B-R) on 4 documents."
    assert runs.gaps == [sentence]


def test_short_answers_of_a_cascade_are_used_if_it_has_more_documents_than_a_run_of_the_model(tmp_path: Path) -> None:
    cascade = POPE.write(tmp_path, "cascade")
    alone = World("pope", POPE.documents[:3]).write(tmp_path, "large", time="20260102_000000")
    POPE.write(tmp_path, "small", time="20260103_000000")
    runs, _ = evidence([tmp_path])
    (method,) = [run.method for run in runs.unused]
    large, small = runs.get("pope", method), runs.get("pope", Method("alone", SMALL, "", "S"))
    assert large is not None and large.derived and large.documents == 4
    assert small is not None and not small.derived
    (gap,) = runs.gaps
    assert gap.startswith(f"{alone}: pope_s is not used, because {cascade} has the short answers of the same method ")


def test_other_models_may_have_any_number_of_documents(tmp_path: Path) -> None:
    dataclasses.replace(POPE, small="a/tiny", large="a/big").write(tmp_path, "cascade")
    assert not [gap for gap in report([tmp_path]).gaps if "the paper has" in gap]


def test_runs_with_different_documents_are_compared_on_those_that_both_have(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade", original=9)
    first, second, third, _ = POPE.documents
    other_gold = dataclasses.replace(second, gold="yes")
    World("pope", [first, other_gold, third]).write(tmp_path, "transfer", time="20260102_000000")
    found = report([tmp_path])
    (row,) = [row for row in found.table("mai-against-others").rows if "Full RT" in str(row[2])]
    assert row[3] == 2
    gaps = " ".join(found.gaps)
    assert (
        "MAI 8B + 2B-R and Full RT 8B + 2B-R on POPE have 4 and 3 documents; they are compared on the 2 that both have."
        in gaps
    )
    assert "POPE: MAI 8B + 2B-R has 4 of 9 documents (--limit)." in gaps
    assert "POPE: the paper has 9000 documents and these runs 3, 4" in gaps


def test_a_run_of_a_pair_without_a_cascade_is_not_compared_and_has_a_sentence(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade")
    dataclasses.replace(POPE, small="a/tiny", large="a/big").write(tmp_path, "transfer", time="20260102_000000")
    dataclasses.replace(POPE, large="a/big").write(tmp_path, "small", time="20260103_000000")
    found = report([tmp_path])
    (gap,) = [gap for gap in found.gaps if "no cascade has" in gap]
    assert gap == "POPE: no cascade has the models of Full RT big + tiny-R, so MAI is not compared with them."
    assert {row[2] for row in found.table("mai-against-others").rows} == {"2B-S", "8B-S"}


def test_a_score_that_contradicts_the_results_file_is_a_gap(tmp_path: Path) -> None:
    file = POPE.write(tmp_path, "large", metrics={"pope_f1_score": 0.9})
    (gap,) = evidence([tmp_path])[0].gaps
    assert gap.startswith(f"{file}: the samples of pope_s give a score of 66.67, and the results file has 90.00. ")


def test_tables_that_the_runs_do_not_allow_have_a_sentence_and_those_of_a_cascade_only_one(tmp_path: Path) -> None:
    POPE.write(tmp_path, "large")
    alone = [gap for gap in report([tmp_path]).gaps if "cascade" in gap or "MAI" in gap]
    assert len(alone) == 1 and alone[0].startswith("There is no run with mode=cascade. Table 10,")
    POPE.write(tmp_path, "cascade", time="20260102_000000")
    gaps = " ".join(report([tmp_path]).gaps)
    assert "There is no run with mode=cascade" not in gaps
    assert "Table 8 needs a run with mode=transfer." in gaps and "The random router needs a cascade with" in gaps
