"""Profiles: the paper's tables, and the file."""

import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest
from support.profiles import TINY

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reports import paper_numbers
from lmms_eval_mai.times import paper_profiles
from lmms_eval_mai.times import profile as files
from lmms_eval_mai.times.profile import Profile, summary


def test_tokens_per_second_of_the_papers_profiles_are_those_that_table_4_prints() -> None:
    found = {one.name: round(one.tokens_per_s(), 2) for one in paper_profiles.profiles()}
    assert found == {"2B": 61.80, "4B": 47.77, "8B": 47.26}
    printed = paper_numbers.table(4)["rows"]
    assert found == {name: row["tokens_per_s"] for name, row in printed.items()}


def cells(profile: Profile, kind: str, *columns: str) -> list[tuple[float, ...]]:
    return [tuple(row) for row in profile.of(kind)[list(columns)].to_numpy().tolist()]


def test_the_papers_profiles_have_all_numbers_of_tables_1_to_4() -> None:
    small = paper_profiles.profiles()[0]
    assert small.model == "Qwen/Qwen3-VL-2B-Instruct"
    image = ("image", "image_tokens", "mean", "repeats")
    assert cells(small, "preprocessing", *image)[-1] == (4096, 16384, 0.33519, 100)
    assert cells(small, "vision", *image)[2] == (1024, 1024, 0.02441, 100)
    sizes = ("image", "image_tokens", "text_tokens", "output_tokens", "mean")
    assert cells(small, "ttft", *sizes)[3] == (512, 256, 64, 1, 0.02822)
    assert cells(small, "decoding", *sizes)[7] == (256, 64, 256, 512, 8.07089)
    assert small.rows["kind"].value_counts().to_dict() == {"decoding": 16, "ttft": 9, "preprocessing": 5, "vision": 5}
    assert small.rows["median"].isna().all() and (small.rows["seconds"] == small.rows["mean"]).all()


def test_a_profile_is_the_same_after_it_was_written_and_read(tmp_path: Path) -> None:
    path = files.write(TINY, tmp_path / "new")
    assert path.name == "profile-tiny-A-CPU-2-cores.json"
    found = files.read(path)
    pd.testing.assert_frame_equal(found.rows, TINY.rows)
    assert all(getattr(found, name) == getattr(TINY, name) for name in files.FACTS) and found.source == str(path)


def test_the_file_of_an_earlier_version_can_be_read(tmp_path: Path) -> None:
    """Written at commit ecbb125."""
    seconds = {"mean": 0.02, "median": 0.01, "deviation": 0.001, "least": 0.009, "greatest": 0.03, "repeats": 3}
    mean = dict.fromkeys(seconds) | {"mean": 0.05}
    image = {"image": 64, "image_tokens": 4}
    prompt = {**image, "text_tokens": 60}
    record = {
        "format": 1, "name": "old", "model": "/models/old", "device": "A GPU", "engine": "vllm", "dtype": "bfloat16",
        "versions": {"torch": "2.13"}, "settings": {"repeats": 3},
        "preprocessing": [{**image, "seconds": seconds}], "vision": [{**image, "seconds": mean}],
        "ttft": [{**prompt, "seconds": seconds}], "decoding": [{**prompt, "output_tokens": 8, "seconds": mean}],
        "batches": [{"batch_size": 8, **prompt, "output_tokens": 16, "first_token": seconds, "seconds": mean}],
    }  # fmt: skip
    path = tmp_path / "old.json"
    path.write_text(json.dumps(record))
    found = files.read(path)
    assert found.rows[["kind", "batch_size", "output_tokens", "seconds"]].to_numpy().tolist() == [
        ["preprocessing", 1, 1, 0.01], ["vision", 1, 1, 0.05], ["ttft", 1, 1, 0.01], ["decoding", 1, 8, 0.05],
        ["batches", 8, 1, 0.01], ["batches", 8, 16, 0.05],
    ]  # fmt: skip
    assert json.loads(files.write(found, tmp_path / "again").read_text()) == record


def test_repeats_have_mean_median_and_spread() -> None:
    assert list(summary([1.0, 2.0, 6.0]).values()) == [3.0, 2.0, pytest.approx(7**0.5), 1.0, 6.0, 3]
    assert summary([1.0])["deviation"] is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "it is not JSON"),
        ("[1]", "is not a profile of this version"),
        ('{"format": 99}', "is not a profile of this version"),
        ('{"format": 1}', "is broken (KeyError: 'preprocessing')"),
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
    path = files.write(dataclasses.replace(TINY, rows=TINY.rows[TINY.rows["kind"] != "decoding"]), tmp_path)
    with pytest.raises(ArgumentError, match="no times of decoding"):
        files.read(path)


def test_missing_file_and_a_folder_that_cannot_be_written_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot be read"):
        files.read(tmp_path / "no.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="cannot be written"):
        files.write(TINY, tmp_path / "file")
