"""The times of calls, computed from a profile: one after another (Eq. 27, and with a single time to the first token),
and in full batches.

Eq. 27 adds TTFT and output tokens / (tokens per second). "Avg Tok/s" of Table 4 comes from whole requests, so it
contains a share of the TTFT, and Eq. 27 counts the TTFT twice. The other form is TTFT + (output tokens - 1) * (time
between two tokens), because the TTFT contains the first output token.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from lmms_eval_mai.times.profile import Profile

Array = npt.NDArray[np.float64]
Numbers = npt.ArrayLike
"""One number for each call, or a single number."""
Points = tuple[Array, Array]
"""Tokens, rising, and a value for each."""
NEAR = 1.02
"""Points whose numbers of tokens differ by less are one point: between them, noise would make a steep line."""


class CallTimes:
    """The times of calls to the model of one profile, one at a time (batch size 1)."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.tokens_per_s = profile.tokens_per_s()
        ttft = profile.of("ttft")
        self._by_length = means(ttft["image_tokens"] + ttft["text_tokens"], ttft["seconds"])
        images = sorted(set(ttft["image_tokens"]))
        self._images = np.array(images, dtype=float)
        cells = (ttft[ttft["image_tokens"] == tokens] for tokens in images)
        self._rows = [means(one["text_tokens"], one["seconds"]) for one in cells]
        """The times of each image, by the other tokens of the prompt."""
        later = profile.of("decoding")
        later = later[later["output_tokens"] > 1]
        lengths = later["image_tokens"] + later["text_tokens"]
        self.inter_token_s = self._inter_token_s(later) if len(later) else 1 / self.tokens_per_s
        """The time between two output tokens, over all cells of Table 4."""
        by_length = [self._inter_token_s(later[lengths == length]) for length in sorted(set(lengths))]
        self._later = means(sorted(set(lengths)) or [0], by_length or [self.inter_token_s])

    def of(self, calls: pd.DataFrame) -> pd.DataFrame:
        """Return the seconds of calls, in the same order, with the columns `ttft_s`, `decoding_s` (output tokens /
        (tokens per second)), `equation_s` (Eq. 27), `single_s` (with a single TTFT), and `beyond` (whether the TTFT is
        extrapolated, because the profile's prompts are shorter).

        `calls` has the columns `prompt_tokens`, `image_tokens` (nan if not known) and `output_tokens`, which may be
        averages.
        """
        prompt, image, output = _columns(calls, "prompt_tokens", "image_tokens", "output_tokens")
        ttft_s, decoding_s = self.ttft_s(prompt, image), output / self.tokens_per_s
        later_s = np.maximum(0, output - 1) * self.later_token_s(prompt)
        found = pd.DataFrame({"ttft_s": ttft_s, "decoding_s": decoding_s}, index=calls.index)
        beyond = self.is_beyond(prompt, image)
        return found.assign(equation_s=ttft_s + decoding_s, single_s=ttft_s + later_s, beyond=beyond)

    def ttft_s(self, prompt_tokens: Numbers, image_tokens: Numbers = np.nan) -> Array:
        """Return the time to the first token, interpolated by the image tokens and the other tokens of the prompt.

        If the image tokens are not known (nan), it is interpolated by the length of the prompt, as in Appendix B.2. A
        shorter prompt than all of the profile takes the time of the shortest one. For a longer one, the line through
        the last two times is continued.
        """
        prompt, image = _arrays(prompt_tokens, image_tokens)
        by_image = np.array([on_line(*row, prompt - image) for row in self._rows])
        return np.where(np.isnan(image), on_line(*self._by_length, prompt), on_line(self._images, by_image, image))

    def is_beyond(self, prompt_tokens: Numbers, image_tokens: Numbers = np.nan) -> npt.NDArray[np.bool_]:
        """Return whether prompts are longer than those of the profile with images of this size."""
        prompt, image = _arrays(prompt_tokens, image_tokens)
        # A profile has shorter texts with large images if the context has no space for longer ones.
        longest = np.array([row[0][-1] for row in self._rows])
        above = np.clip(np.searchsorted(self._images, image), 0, len(longest) - 1)
        below = np.where(self._images[above] > image, np.maximum(above - 1, 0), above)
        of_image = (image > self._images[-1]) | (prompt - image > np.minimum(longest[below], longest[above]))
        return np.where(np.isnan(image), prompt > self._by_length[0][-1], of_image)

    def later_token_s(self, prompt_tokens: Numbers) -> Any:
        """Return the time of each token after the first one, interpolated by the length of the prompt. Outside of the
        lengths of Table 4, it is that of the nearest length."""
        return np.interp(np.asarray(prompt_tokens, dtype=float), *self._later)

    def _inter_token_s(self, cells: pd.DataFrame) -> float:
        """Return the time between two output tokens: that of some cells of Table 4 without their TTFT, divided by their
        later tokens."""
        first = self.ttft_s(cells["image_tokens"] + cells["text_tokens"], cells["image_tokens"])
        return max(0.0, float((cells["seconds"] - first).sum() / (cells["output_tokens"] - 1).sum()))


class BatchTimes:
    """The time of calls in full batches of one size: their shares in the time of an engine that always works on full
    batches. There is no waiting for the last calls."""

    def __init__(self, profile: Profile, batch_size: int) -> None:
        """The profile must have measurements of this batch size."""
        cells = profile.of("batches")
        cells = cells[cells["batch_size"] == batch_size]
        first, whole = (cells.iloc[start::2].reset_index(drop=True) for start in (0, 1))
        lengths = first["image_tokens"] + first["text_tokens"]
        later = np.maximum(0, whole["seconds"] - first["seconds"]) / np.maximum(1, whole["output_tokens"] - 1)
        self._prefill = means(lengths, first["seconds"] / batch_size)
        self._decoding = means(lengths, later / batch_size)

    def of(self, calls: pd.DataFrame) -> pd.DataFrame:
        """Return the seconds of calls, in the same order: `prefill_s`, and `batch_s` of decoding. `calls` has the
        columns for `CallTimes.of`, and `cached_tokens`, which need no prefill. Each output token attends to them too,
        so its time is that of the whole prompt."""
        prompt, cached, output = _columns(calls, "prompt_tokens", "cached_tokens", "output_tokens")
        read = np.maximum(1, prompt - cached)
        lengths, seconds = self._prefill
        # In a full batch, a prefill is proportional to the prompt beyond the measured lengths.
        nearest = np.clip(read, lengths[0], lengths[-1])
        prefill_s = np.interp(nearest, lengths, seconds) * read / nearest
        batch_s = np.maximum(0, output - 1) * on_line(*self._decoding, prompt)
        return pd.DataFrame({"prefill_s": prefill_s, "batch_s": batch_s}, index=calls.index)


def batch_sizes(profiles: Iterable[Profile]) -> list[int]:
    """Return the batch sizes that all profiles have."""
    sizes = [profile.batch_sizes() for profile in profiles]
    return sorted(set.intersection(*sizes)) if sizes else []


def means(tokens: Numbers, values: Numbers) -> Points:
    """Return points sorted by their tokens. Those with almost the same tokens become one with their means."""
    x, y = np.asarray(tokens, dtype=float), np.asarray(values, dtype=float)
    order = np.lexsort((y, x))
    x, y = x[order], y[order]
    starts: list[int] = []
    for number, one in enumerate(x):
        if not starts or one > NEAR * x[starts[-1]]:
            starts.append(number)
    groups = [slice(*ends) for ends in pairwise([*starts, len(x)])]
    return np.array([round(x[one].mean()) for one in groups], dtype=float), np.array([y[one].mean() for one in groups])


def on_line(tokens: Array, values: Array, at: Array) -> Array:
    """Return the values at some numbers of tokens: constant before the first point, linear between two points, and on
    the line of the last two points after the last one. This line does not fall: a longer prompt does not take less
    time. `values`: one for each point, or a row for each point with a value for each of `at`."""
    rows = np.broadcast_to(values if values.ndim > 1 else values[:, None], (len(values), len(at)))
    if len(tokens) == 1:
        return np.array(rows[0])
    last = np.clip(np.searchsorted(tokens, at), 1, len(tokens) - 1)
    each = np.arange(len(at))
    low, high, before, after = rows[last - 1, each], rows[last, each], tokens[last - 1], tokens[last]
    slope = (high - low) / (after - before)
    beyond = high + np.maximum(0, slope) * (at - after)
    return np.where(at > after, beyond, low + slope * np.maximum(0, at - before))


def _columns(calls: pd.DataFrame, *names: str) -> list[Array]:
    return [calls[name].to_numpy(float) for name in names]


def _arrays(prompt_tokens: Numbers, image_tokens: Numbers) -> tuple[Array, Array]:
    prompt, image = np.broadcast_arrays(np.atleast_1d(prompt_tokens), np.asarray(image_tokens))
    return prompt.astype(float), image.astype(float)
