"""The paper's profiles (Qwen3-VL on one H100) with batches, which the paper did not measure.

The assumptions are simple:

* An engine decodes up to 32 calls at the same time (B.4), and a step takes as long as that of one call (Table 4). On a
  GPU, a step of a small batch reads the same weights.
* A prefill takes the TTFT of Table 3, and an engine prefills one prompt at a time.
"""

import dataclasses
from collections.abc import Iterator

from lmms_eval_mai.profiles.profile import BatchPoint, Profile, Seconds
from lmms_eval_mai.profiles.times import ProfileTimes
from lmms_eval_mai.reports import paper_profiles

BATCH_SIZE = 32
PROMPTS = (128, 320, 576, 1088, 1536)
"""Prompt tokens of the batches: those of Table 3, between which its times rise."""
OUTPUT_TOKENS = 128


def profile(name: str) -> Profile:
    """Return the paper's profile of 2B, 4B or 8B with the assumed batches of 1 and 32 calls."""
    (found,) = (one for one in paper_profiles.profiles() if one.name == name)
    return dataclasses.replace(found, batches=tuple(_batches(ProfileTimes(found))))


def _batches(times: ProfileTimes) -> Iterator[BatchPoint]:
    for size in (1, BATCH_SIZE):
        for tokens in PROMPTS:
            first_s = size * times.ttft_s(tokens)
            later_s = (OUTPUT_TOKENS - 1) * times.later_token_s(tokens)
            yield BatchPoint(size, 0, 0, tokens, OUTPUT_TOKENS, Seconds(first_s), Seconds(first_s + later_s))
