"""The time of one call: Eq. 27, the form with one TTFT, the lookup of the TTFT, and full batches."""

import pytest
from support.profiles import TINY

from lmms_eval_mai.profiles.profile import BatchPoint, DecodingPoint, Profile, Seconds, TtftPoint
from lmms_eval_mai.profiles.throughput import BatchTimes, EngineSeconds, batch_sizes
from lmms_eval_mai.profiles.times import ProfileTimes
from lmms_eval_mai.reports import paper_profiles

SMALL, _, LARGE = (ProfileTimes(one) for one in paper_profiles.profiles())


def test_equation_27_adds_the_ttft_of_the_prompt_and_the_output_tokens_by_tokens_per_second() -> None:
    call = LARGE.call(prompt_tokens=576, output_tokens=10)
    assert call.equation_s == pytest.approx(0.04793 + 10 / 47.26, rel=1e-4)
    assert not call.beyond


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
    points = ((64, 4, 100), (64, 4, 900), (256, 64, 100), (256, 64, 500))  # the context ends at 900 tokens
    ttft = tuple(TtftPoint(*point, Seconds(0.01)) for point in points)
    times = ProfileTimes(Profile("x", "x", "x", ttft=ttft, decoding=TINY.decoding))
    assert [times.is_beyond(text + 4, 4) for text in (900, 901)] == [False, True]
    assert [times.is_beyond(text, 0) for text in (900, 901)] == [False, True]
    assert [times.is_beyond(text + 30, 30) for text in (500, 501)] == [False, True]
    assert [times.is_beyond(text + 64, 64) for text in (500, 501)] == [False, True]


def test_one_ttft_predicts_every_cell_of_table_4_and_equation_27_does_not() -> None:
    errors = {"one": 0.0, "equation": 0.0}
    for times in (SMALL, LARGE):
        for cell in times.profile.decoding:
            call = times.call(cell.image_tokens + cell.text_tokens, cell.output_tokens, cell.image_tokens)
            for name, seconds in (("one", call.corrected_s), ("equation", call.equation_s)):
                errors[name] = max(errors[name], abs(seconds / cell.seconds.mean - 1))
    assert errors["one"] < 0.02 and errors["equation"] > 0.12


def test_a_later_token_takes_the_time_of_prompts_of_that_length() -> None:
    cells = ((64, 0.074), (96, 0.174), (196, 0.374))  # 7 later tokens, after a first one of 4 ms
    points = tuple(DecodingPoint(64, 4, tokens - 4, 8, Seconds(seconds)) for tokens, seconds in cells)
    times = ProfileTimes(Profile("x", "x", "x", ttft=(TtftPoint(64, 4, 60, Seconds(0.004)),), decoding=points))
    expected = [(one - 0.004) / 7 for one in (0.074, 0.074, 0.124, 0.374, 0.374)]
    assert [times.later_token_s(tokens) for tokens in (1, 64, 80, 196, 5000)] == pytest.approx(expected)
    assert times.call(80, 11).corrected_s == pytest.approx(0.004 + 10 * 0.12 / 7)


def test_one_output_token_takes_only_the_ttft_in_the_form_with_one_ttft() -> None:
    assert LARGE.call(320, 1).corrected_s == LARGE.ttft_s(320)
    assert LARGE.call(320, 0).corrected_s == LARGE.ttft_s(320)


def test_a_profile_with_one_point_has_a_constant_ttft() -> None:
    times = ProfileTimes(TINY)
    assert (times.ttft_s(1), times.ttft_s(5000), times.ttft_s(5000, 100)) == (0.01, 0.01, 0.01)
    assert times.inter_token_s == pytest.approx(0.07 / 7)


def test_decoding_that_is_faster_than_the_ttft_does_not_give_negative_times() -> None:
    points = (DecodingPoint(64, 4, 60, 2, Seconds(0.005)),)
    times = ProfileTimes(Profile("x", "x", "x", ttft=(TtftPoint(64, 4, 60, Seconds(0.01)),), decoding=points))
    assert times.call(64, 100).corrected_s == 0.01


def batch(size: int, text_tokens: int, first_s: float, all_s: float) -> BatchPoint:
    return BatchPoint(size, 64, 4, text_tokens, 11, Seconds(first_s), Seconds(all_s))


def test_a_call_in_a_full_batch_takes_its_share_of_the_batch() -> None:
    profile = Profile("x", "x", "x", batches=(batch(8, 96, 0.8, 1.6), batch(8, 196, 1.6, 3.2), batch(32, 96, 1.6, 2.4)))
    times = BatchTimes(profile, 8)
    assert times.call(100, 21) == EngineSeconds(pytest.approx(0.1), pytest.approx(20 * 0.01))
    assert times.call(150, 1) == EngineSeconds(pytest.approx(0.15), 0.0)
    assert times.call(50, 1).prefill_s == pytest.approx(0.05)  # in proportion to the shortest prompt
    assert times.call(2000, 1).prefill_s == pytest.approx(2.0)
    cached = times.call(200, 11, cached_tokens=100)  # the prefill of 100 tokens, and the decoding after 200
    assert cached == EngineSeconds(pytest.approx(0.1), pytest.approx(10 * 0.02))
    assert BatchTimes(profile, 32).call(100, 11).total_s == pytest.approx(0.05 + 0.025)


def test_only_batch_sizes_that_all_profiles_have_are_compared() -> None:
    one = Profile("x", "x", "x", batches=(batch(8, 96, 1, 2), batch(32, 96, 1, 2)))
    other = Profile("y", "y", "x", batches=(batch(32, 96, 1, 2), batch(128, 96, 1, 2)))
    assert batch_sizes([one, other]) == [32]
    assert batch_sizes([one, paper_profiles.profiles()[0]]) == []
    assert batch_sizes([]) == []
