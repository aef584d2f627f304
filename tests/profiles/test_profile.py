"""Profiles: the paper's tables, and the file."""

import dataclasses
import json
from pathlib import Path

import pytest
from support.profiles import TINY

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.profiles import files
from lmms_eval_mai.profiles.profile import DecodingPoint, ImagePoint, Seconds, TtftPoint
from lmms_eval_mai.reports import paper_numbers, paper_profiles


def test_tokens_per_second_of_the_papers_profiles_are_those_that_table_4_prints() -> None:
    found = {one.name: round(one.tokens_per_s(), 2) for one in paper_profiles.profiles()}
    assert found == {"2B": 61.80, "4B": 47.77, "8B": 47.26}
    printed = paper_numbers.table(4)["rows"]
    assert found == {name: row["tokens_per_s"] for name, row in printed.items()}


def test_the_papers_profiles_have_all_numbers_of_tables_1_to_4() -> None:
    small = paper_profiles.profiles()[0]
    assert small.model == "Qwen/Qwen3-VL-2B-Instruct"
    assert [(one.image, one.image_tokens, one.seconds.mean) for one in small.preprocessing][-1] == (
        4096,
        16384,
        0.33519,
    )
    assert small.vision[2] == ImagePoint(1024, 1024, Seconds(0.02441, repeats=100))
    assert small.ttft[3] == TtftPoint(512, 256, 64, Seconds(0.02822, repeats=100))
    assert [len(part) for part in (small.preprocessing, small.vision, small.ttft, small.decoding)] == [5, 5, 9, 16]
    assert small.decoding[7] == DecodingPoint(256, 64, 256, 512, Seconds(8.07089, repeats=100))


def test_a_profile_is_the_same_after_it_was_written_and_read(tmp_path: Path) -> None:
    path = files.write(TINY, tmp_path / "new")
    assert path.name == "profile-tiny-A-CPU-2-cores.json"
    assert files.read(path) == dataclasses.replace(TINY, source=str(path))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "it is not JSON"),
        ("[1]", "is not a profile of this version"),
        ('{"format": 99}', "is not a profile of this version"),
        ('{"format": 1}', "is broken (KeyError: 'name')"),
    ],
)
def test_a_file_that_is_not_a_profile_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ArgumentError, match=r"p\.json") as raised:
        files.read(tmp_path / "p.json")
    assert sentence in str(raised.value)


@pytest.mark.parametrize("seconds", [{"mean": 0}, {"mean": -1}, {"mean": 1e999}, {"median": 1}, {"mean": "x"}])
def test_a_time_that_is_not_a_positive_number_is_refused(tmp_path: Path, seconds: object) -> None:
    path = files.write(TINY, tmp_path)
    record = json.loads(path.read_text())
    record["ttft"][0]["seconds"] = seconds
    path.write_text(json.dumps(record))
    with pytest.raises(ArgumentError, match="is broken"):
        files.read(path)


@pytest.mark.parametrize(("field", "number"), [("output_tokens", 0), ("text_tokens", -1), ("text_tokens", 1.5)])
def test_a_number_of_tokens_that_cannot_be_is_refused(tmp_path: Path, field: str, number: float) -> None:
    path = files.write(TINY, tmp_path)
    record = json.loads(path.read_text())
    record["decoding"][0][field] = number
    path.write_text(json.dumps(record))
    with pytest.raises(ArgumentError, match=f"is broken .*{field}"):
        files.read(path)


def test_a_profile_without_decoding_is_refused(tmp_path: Path) -> None:
    path = files.write(dataclasses.replace(TINY, decoding=()), tmp_path)
    with pytest.raises(ArgumentError, match="no times of decoding"):
        files.read(path)


def test_missing_file_and_a_folder_that_cannot_be_written_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot be read"):
        files.read(tmp_path / "no.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="cannot be written"):
        files.write(TINY, tmp_path / "file")
