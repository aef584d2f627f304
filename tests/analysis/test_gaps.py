"""Missing and broken files, and runs that do not belong together: each gap is one sentence, and the rest is used."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.folders import LARGE, POPE, SMALL, World, edit, line, write_run
from support.pair import Answers
from support.tables import report

from lmms_eval_mai.analysis.runs.folders import read_runs
from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.runs.setups import Setup
from lmms_eval_mai.analysis.tables import seconds
from lmms_eval_mai.engines.scripted import RecordedScript
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.files import load
from lmms_eval_mai.method.methods import LARGE as LARGE_ALONE
from lmms_eval_mai.run import calibration
from lmms_eval_mai.run.pairs import FOLDER


def test_a_folder_without_a_run_beside_one_with_runs_is_a_gap(tmp_path: Path) -> None:
    file = POPE.write(tmp_path / "runs", "mai")
    (tmp_path / "empty").mkdir()
    found = read_runs([tmp_path, tmp_path / "runs", file, tmp_path / "empty"])  # the run is read once
    assert len(found.runs) == 1
    (gap,) = found.gaps
    assert str(tmp_path / "empty") in gap


def test_lines_and_documents_that_are_missing_are_counted_and_the_others_are_used(tmp_path: Path) -> None:
    POPE.write(tmp_path, "large", number=6)
    (file,) = tmp_path.glob("*_samples_*")
    file.write_bytes(file.read_bytes().replace(b"yes", "é".encode()[:1], 1) + b'{"doc_id": 4, "target"')
    cached = write_run(tmp_path / "cached", "pope_s", [line(0, "yes", "yes", None)])
    broken_off, unknown = read_runs([tmp_path]).gaps
    assert str(file) in broken_off and "2 lines" in broken_off and "3 documents without a line" in broken_off
    assert str(cached.parent) in unknown and "without a score" in unknown and "without a trace" in unknown
    assert [run.documents for run in read_runs([tmp_path]).runs] == [3, 1]


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (lambda file: seconds.read(str(file)), '{"device": "", "models": {"m": {"ttft_s": [], "tokens_per_s": 1}}}'),
        (lambda file: calibration.read(str(file)), (FOLDER / "demo" / "min_confidence.json").read_text()),
        (load, "- ask: large.simple\n- stop: {exit: one, answer: large.simple}"),
        (RecordedScript, '{"task": "t", "doc_id": 0, "prompt": "simple", "text": ""}'),
    ],
    ids=["profile", "thresholds", "method", "script"],
)
def test_a_file_of_a_user_with_a_byte_order_mark_is_read_and_one_cut_in_a_character_is_named(
    tmp_path: Path, read: Callable[[Path], Any], text: str
) -> None:
    (file := tmp_path / "file.yaml").write_bytes(text.encode("utf-8-sig"))
    assert read(file)
    file.write_bytes((text + "é").encode()[:-1])
    with pytest.raises(ArgumentError, match=str(file)):
        read(file)


def test_lines_of_two_runs_in_one_file_and_calls_that_were_cut_off_are_counted(tmp_path: Path) -> None:
    lines = World("pope", POPE.documents[:1]).lines("full_rt")
    lines[0]["token_counts"][0]["calls"][0]["finish_reason"] = "length"
    write_run(tmp_path, "pope_s", 3 * lines, number=1)
    (gap,) = read_runs([tmp_path]).gaps
    assert "2 lines that are not the last one of their document" in gap
    assert "1 calls of the small model that a token limit cut off" in gap and "large" not in gap


@pytest.mark.parametrize("text", ['{"results": "\udcc3', '{"results": 3}', None])
def test_a_run_with_broken_results_or_without_samples_is_named_and_the_others_are_used(
    tmp_path: Path, text: str | None
) -> None:
    POPE.write(tmp_path / "whole", "full_rt")
    broken = POPE.write(tmp_path / "broken", "mai")
    if text is None:
        next(broken.parent.glob("*_samples_*")).unlink()
    else:
        broken.write_text(text, errors="surrogateescape")
    found = read_runs([tmp_path])
    assert [run.setup.family for run in found.runs] == ["full_rt"]
    (gap,) = found.gaps
    assert str(broken) in gap and "is not used" in gap


def test_of_two_runs_of_a_method_the_one_with_more_documents_is_used(tmp_path: Path) -> None:
    more = POPE.write(tmp_path, "mai", time="20260102_000000")
    less = World("pope", POPE.documents[:2]).write(tmp_path, "mai", time="20260103_000000")
    runs = Runs.read([tmp_path])
    assert [run.file for run in runs.select("cascade")] == [more] and [run.file for run in runs.unused] == [less]
    (gap,) = runs.gaps
    assert str(less) in gap and str(more) in gap


def test_short_answers_of_a_cascade_are_used_only_if_the_model_has_no_run_of_its_own(tmp_path: Path) -> None:
    POPE.write(tmp_path, "mai")
    POPE.write(tmp_path, "small", time="20260103_000000")
    runs = Runs.read([tmp_path])
    large, small = (runs.get("pope", Setup(LARGE_ALONE, model)) for model in (LARGE, SMALL))
    assert large is not None and large.is_replay and large.documents == 4
    assert small is not None and not small.is_replay


def test_runs_of_models_that_are_in_no_cascade_are_not_compared_with_it(tmp_path: Path) -> None:
    dataclasses.replace(POPE, small="a/tiny", large="a/big").write(tmp_path, "full_rt")
    assert not [gap for gap in report([tmp_path], ()).gaps if "the paper has" in gap]
    POPE.write(tmp_path, "mai", time="20260102_000000")
    assert {row[2] for row in report([tmp_path], ()).table("differences").rows} == {"2B S", "8B S"}


def test_a_score_on_images_that_chose_the_threshold_is_marked(tmp_path: Path) -> None:
    for chose, sentence in (("bdx", "2 of the 4 scored answers"), ("x", None)):
        World("shapes", [Answers(*5 * ["red"], images=(name,)) for name in "abcd"]).write(tmp_path, "mai_confidence")
        edit(tmp_path, lambda line, n, chose=chose: line["token_counts"][0].update(chose_threshold="abcd"[n] in chose))
        marked = [gap for gap in report([tmp_path], ()).gaps if "chose its threshold" in gap]
        assert [gap for gap in marked if sentence and sentence in gap] == marked
        assert bool(marked) == (sentence is not None)
