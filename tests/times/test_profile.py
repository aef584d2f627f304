"""Profiles: the paper's tables, the file, and tables beside the paper's numbers."""

import dataclasses
import json
import math
from pathlib import Path

import pandas as pd
import pytest
from support.profiles import TINY
from support.tables import row_of

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reports import formats, paper_numbers
from lmms_eval_mai.times import profile as files
from lmms_eval_mai.times.call_times import CallTimes
from lmms_eval_mai.times.profile import Profile, of_paper, summary
from lmms_eval_mai.times.profile_tables import crossing, report

SMALL, _, LARGE = of_paper()


def cells(profile: Profile, kind: str, *columns: str) -> list[tuple[float, ...]]:
    return [tuple(row) for row in profile.of(kind)[list(columns)].to_numpy().tolist()]


def test_the_papers_profiles_have_all_numbers_of_tables_1_to_4_and_its_tokens_per_second() -> None:
    assert SMALL.model == "Qwen/Qwen3-VL-2B-Instruct"
    image = ("image", "image_tokens", "mean", "repeats")
    assert cells(SMALL, "preprocessing", *image)[-1] == (4096, 16384, 0.33519, 100)
    assert cells(SMALL, "vision", *image)[2] == (1024, 1024, 0.02441, 100)
    sizes = ("image", "image_tokens", "text_tokens", "output_tokens", "mean")
    assert cells(SMALL, "ttft", *sizes)[3] == (512, 256, 64, 1, 0.02822)
    assert cells(SMALL, "decoding", *sizes)[7] == (256, 64, 256, 512, 8.07089)
    assert SMALL.rows["kind"].value_counts().to_dict() == {"decoding": 16, "ttft": 9, "preprocessing": 5, "vision": 5}
    assert SMALL.rows["median"].isna().all() and (SMALL.rows["seconds"] == SMALL.rows["mean"]).all()
    found = {one.name: round(one.tokens_per_s(), 2) for one in of_paper()}
    assert found == {name: row["tokens_per_s"] for name, row in paper_numbers.table(4)["rows"].items()}


def test_a_profile_is_the_same_after_it_was_read_and_written_also_that_of_an_earlier_version(tmp_path: Path) -> None:
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
    assert found.source == str(path)
    again = files.write(found, tmp_path)
    assert again.name == "profile-old-A-GPU.json" and json.loads(again.read_text()) == record


def test_repeats_have_mean_median_and_spread() -> None:
    assert list(summary([1.0, 2.0, 6.0]).values()) == [3.0, 2.0, pytest.approx(7**0.5), 1.0, 6.0, 3]
    assert summary([1.0])["deviation"] is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "it is not JSON"),
        ("[1]", "is not a profile of this version"),
        ('{"format": 99}', "is not a profile of this version"),
        ('{"format": 1}', r"is broken \(KeyError: 'preprocessing'\)"),
    ],
)
def test_a_file_that_is_not_a_profile_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ArgumentError, match=rf"p\.json.* {sentence}"):
        files.read(tmp_path / "p.json")


# --- tables ---


def slower(profile: Profile, factor: float) -> Profile:
    """Return a profile of the same model on a device that takes `factor` times as long."""
    scaled = {name: factor * profile.rows[name] for name in ("mean", "seconds")}
    return dataclasses.replace(profile, device="Slow", rows=profile.rows.assign(**scaled))


def test_each_cell_is_beside_the_papers_with_the_quotient() -> None:
    found = report([slower(LARGE, 3)])
    assert [table.key for table in found.tables] == ["table-1", "table-2", "table-3", "table-4", "speeds"]
    row = row_of(found.table("table-3"), "8B", "512", "256", "64")
    assert (row["median, ms"], row["paper, ms"], row["median / paper"]) == pytest.approx((110.22, 36.74, 3.0))
    row = row_of(found.table("table-4"), "8B", "256", "64", "64", "512")
    assert (row["paper, ms"], row["median / paper"]) == pytest.approx((10517.45, 3.0))
    assert [len(table.rows) for table in found.tables] == [5, 5, 9, 16, 1]
    speed = row_of(found.table("speeds"), "8B")
    assert (speed["paper"], speed["here / paper"]) == pytest.approx((47.26, 1 / 3), abs=0.01)


def test_other_models_have_no_numbers_of_the_paper() -> None:
    found = report([TINY])
    row = row_of(found.table("table-3"), "tiny", "64")
    assert (row["median, ms"], row["paper, ms"], row["median / paper"]) == (10.0, None, None)
    batch = row_of(found.table("batches"), "tiny", "8")
    assert (batch["prompt tokens/s"], batch["output tokens/s"]) == pytest.approx((8 * 64 / 0.05, 8 * 15 / 0.3))
    assert batch["prefill, %"] == pytest.approx(100 * 0.05 / 0.35)


def single_s(times: CallTimes, output_tokens: int) -> float:
    call = pd.DataFrame({"prompt_tokens": [320], "image_tokens": [math.nan], "output_tokens": [output_tokens]})
    return float(times.of(call)["single_s"].iloc[0])


def test_the_crossing_of_two_profiles_is_beside_that_of_the_papers_pair_which_is_that_of_figure_1a() -> None:
    small, large = CallTimes(SMALL), CallTimes(LARGE)
    papers = crossing(small, large, 320, 128)
    assert papers is not None and 128 < papers < 256  # "a large model with 128 can be faster than a small one with 256"
    assert single_s(small, papers) <= single_s(large, 128) < single_s(small, papers + 1)
    assert crossing(large, small, 320, 1) == 0
    row = row_of(report([slower(SMALL, 2), slower(LARGE, 4)]).table("figure-1a"), "128")
    found = row["faster than the small model with more tokens than"]
    assert row["paper, 8B and 2B"] == papers < int(str(found))


def test_missing_batches_and_cells_beyond_the_context_are_named() -> None:
    one = dataclasses.replace(
        TINY,
        engine="transformers",
        rows=TINY.rows[TINY.rows["kind"] != "batches"],
        settings={"too_long": [[64, 7168]], "no_vision": "no"},
    )
    assert report([one]).gaps == (
        "tiny: these prompts do not fit the context and were left out: 64 px with 7168 tokens.",
        "tiny: transformers cannot run its vision encoder alone (no).",
        "tiny: batches are measured with --engine vllm only.",
    )
    assert "## Runs" not in formats.markdown(report([one]))
