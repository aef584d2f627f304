"""Profiles as tables, beside the paper's numbers, and the crossing of Figure 1 (a)."""

import dataclasses
import math

import pandas as pd
import pytest
from support.profiles import TINY
from support.tables import row_of

from lmms_eval_mai.reports import formats
from lmms_eval_mai.times import paper_profiles
from lmms_eval_mai.times.call_times import CallTimes
from lmms_eval_mai.times.profile import Profile
from lmms_eval_mai.times.profile_tables import crossing, report

SMALL, _, LARGE = paper_profiles.profiles()


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


def test_the_crossing_of_the_papers_pair_is_that_of_figure_1a() -> None:
    small, large = CallTimes(SMALL), CallTimes(LARGE)
    found = crossing(small, large, 320, 128)
    assert found is not None and 128 < found < 256  # "a large model with 128 can be faster than a small one with 256"
    assert single_s(small, found) <= single_s(large, 128)
    assert single_s(small, found + 1) > single_s(large, 128)
    assert crossing(large, small, 320, 1) == 0


def test_the_crossing_of_two_profiles_is_beside_that_of_the_papers_pair() -> None:
    found = report([slower(SMALL, 2), slower(LARGE, 4)])
    crossings = {row[0]: row for row in found.table("figure-1a").rows}
    assert crossings["128"][3] == crossing(CallTimes(SMALL), CallTimes(LARGE), 320, 128)
    assert int(str(crossings["128"][2])) > int(str(crossings["128"][3]))


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
