"""The time of one call: Eq. 27, the form with one TTFT, the lookup of the TTFT, and full batches."""

import numpy as np
import pandas as pd
import pytest
from support.profiles import ONE, TINY, rows_of

from lmms_eval_mai.times.call_times import BatchTimes, CallTimes, batch_sizes
from lmms_eval_mai.times.profile import Profile, of_paper

SMALL, _, LARGE = (CallTimes(one) for one in of_paper())


def calls(*rows: tuple[float, ...], cached: float = 0.0) -> pd.DataFrame:
    """Return calls: prompt tokens, output tokens, and image tokens if they are known."""
    found = pd.DataFrame(
        [(*row, np.nan)[:3] for row in rows], columns=["prompt_tokens", "output_tokens", "image_tokens"]
    )
    return found.assign(cached_tokens=cached)


def single_s(times: CallTimes, *row: float) -> float:
    return float(times.of(calls(row))["single_s"].iloc[0])


def test_equation_27_adds_the_ttft_of_the_prompt_and_the_output_tokens_by_tokens_per_second() -> None:
    call = LARGE.of(calls((576, 10))).iloc[0]
    assert call["equation_s"] == pytest.approx(0.04793 + 10 / 47.26, rel=1e-4)
    assert not call["beyond"]
    assert single_s(LARGE, 320, 1) == single_s(LARGE, 320, 0) == LARGE.ttft_s(320)  # the form with one TTFT


def test_many_calls_have_the_times_of_each_of_them_and_their_index() -> None:
    together = calls((320, 10, 64), (320, 10), (5000, 300, 2000), (1, 1, 0), (700, 30))
    together.index = pd.Index([7, 3, 5, 1, 9])
    found = LARGE.of(together)
    for number in together.index:
        pd.testing.assert_frame_equal(found.loc[[number]], LARGE.of(together.loc[[number]]))


def test_the_ttft_is_interpolated_by_the_length_of_the_prompt() -> None:
    assert SMALL.ttft_s(320) == pytest.approx((0.02779 + 0.02822) / 2)  # two cells of Table 3 have 320 tokens
    assert SMALL.ttft_s(1184) == pytest.approx((0.04596 + 0.04697) / 2)
    assert SMALL.ttft_s(1) == pytest.approx(0.02752)


def test_a_prompt_beyond_the_profile_is_on_the_line_of_the_last_two_points() -> None:
    slope = (0.11531 - 0.10265) / 256
    assert LARGE.ttft_s(1536 + 1000) == pytest.approx(0.11531 + 1000 * slope)
    assert (LARGE.is_beyond(1536), LARGE.is_beyond(1537)) == (False, True)


def test_known_image_tokens_select_the_row_of_the_image() -> None:
    assert LARGE.ttft_s(320, image_tokens=64) == pytest.approx(0.03625)
    assert LARGE.ttft_s(320, image_tokens=256) == pytest.approx(0.03674)
    assert LARGE.ttft_s(160 + 256, image_tokens=160) == pytest.approx((0.03625 + 0.04391) / 2)
    assert LARGE.is_beyond(64 + 513, image_tokens=64) and LARGE.is_beyond(1089, image_tokens=1025)
    assert not LARGE.is_beyond(64 + 512, image_tokens=64)


def test_a_text_beyond_those_with_images_of_its_size_is_beyond_the_profile() -> None:
    points = ((64, 4, 100, 0.01), (64, 4, 900, 0.01), (256, 64, 100, 0.01), (256, 64, 500, 0.01))  # context: 900 tokens
    times = CallTimes(Profile("x", "x", "x", rows_of(points, ONE[1])))
    for image, longest in ((4, 900), (0, 900), (30, 500), (64, 500)):
        assert times.is_beyond([longest + image, longest + image + 1], image).tolist() == [False, True]


def test_one_ttft_predicts_every_cell_of_table_4_and_equation_27_does_not() -> None:
    errors = {}
    for column in ("single_s", "equation_s"):
        errors[column] = 0.0
        for times in (SMALL, LARGE):
            cells = times.profile.of("decoding")
            found = times.of(cells.assign(prompt_tokens=cells["image_tokens"] + cells["text_tokens"]))[column]
            errors[column] = max(errors[column], (found / cells["mean"] - 1).abs().max())
    assert errors["single_s"] < 0.02 and errors["equation_s"] > 0.12


def test_a_later_token_takes_the_time_of_prompts_of_that_length() -> None:
    cells = ((64, 0.074), (96, 0.174), (196, 0.374))  # 7 later tokens, after a first one of 4 ms
    decoding = [(64, 4, tokens - 4, 8, seconds) for tokens, seconds in cells]
    times = CallTimes(Profile("x", "x", "x", rows_of([(64, 4, 60, 0.004)], decoding)))
    expected = [(one - 0.004) / 7 for one in (0.074, 0.074, 0.124, 0.374, 0.374)]
    assert times.later_token_s([1, 64, 80, 196, 5000]) == pytest.approx(expected)
    assert single_s(times, 80, 11) == pytest.approx(0.004 + 10 * 0.12 / 7)


def test_a_profile_with_one_point_has_a_constant_ttft() -> None:
    times = CallTimes(TINY)
    assert (times.ttft_s(1), times.ttft_s(5000), times.ttft_s(5000, 100)) == (0.01, 0.01, 0.01)
    assert times.inter_token_s == pytest.approx(0.07 / 7)
    faster = CallTimes(Profile("x", "x", "x", rows_of(ONE[0], [(64, 4, 60, 2, 0.005)])))  # than the TTFT
    assert single_s(faster, 64, 100) == 0.01


def test_a_call_in_a_full_batch_takes_its_share_of_the_batch() -> None:
    batches = (8, 96, 0.8, 1.6), (8, 196, 1.6, 3.2), (32, 96, 1.6, 2.4)
    rows = rows_of(batches=[(size, 64, 4, text, 11, *seconds) for size, text, *seconds in batches])
    profile = Profile("x", "x", "x", rows)
    found = BatchTimes(profile, 8).of(calls((100, 21), (150, 1), (50, 1), (2000, 1)))
    # A prompt that is shorter or longer than all measured ones is in proportion to the nearest one.
    assert found["prefill_s"].tolist() == pytest.approx([0.1, 0.15, 0.05, 2.0])
    assert found["batch_s"].tolist() == pytest.approx([20 * 0.01, 0, 0, 0])
    cached = BatchTimes(profile, 8).of(calls((200, 11), cached=100)).iloc[0]
    assert cached.tolist() == pytest.approx([0.1, 10 * 0.02])  # the prefill of 100 tokens, and decoding after 200
    assert BatchTimes(profile, 32).of(calls((100, 11))).iloc[0].sum() == pytest.approx(0.05 + 0.025)


def test_only_batch_sizes_that_all_profiles_have_are_compared() -> None:
    one, other = (
        Profile("x", "x", "x", rows_of(batches=[(size, 64, 4, 96, 11, 1, 2) for size in sizes]))
        for sizes in ((8, 32), (32, 128))
    )
    assert batch_sizes([one, other]) == [32]
    assert batch_sizes([one, of_paper()[0]]) == []
    assert batch_sizes([]) == []
