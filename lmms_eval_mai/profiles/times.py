"""The time of one call, computed from a profile: by Eq. 27, and with a single time to the first token (TTFT).

Eq. 27 adds TTFT and output tokens / (tokens per second). "Avg Tok/s" of Table 4 comes from whole requests, so it
contains a share of the TTFT, and Eq. 27 counts the TTFT twice. The other form is TTFT + (output tokens - 1) * (time
between two tokens), because the TTFT contains the first output token.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from lmms_eval_mai.profiles.profile import DecodingPoint, Profile

Points = tuple[tuple[int, float], ...]
"""Pairs of tokens and seconds, sorted by tokens."""


@dataclass(frozen=True, slots=True)
class CallTime:
    """The time of one call in seconds."""

    ttft_s: float
    decoding_s: float
    """Output tokens / (tokens per second)."""
    later_tokens_s: float
    """Decoding without the first token, which is in `ttft_s`."""
    beyond: bool
    """Whether the prompt is longer than all of the profile's, so that the TTFT is extrapolated."""

    @property
    def equation_s(self) -> float:
        """The time by Eq. 27."""
        return self.ttft_s + self.decoding_s

    @property
    def corrected_s(self) -> float:
        """The time with a single TTFT."""
        return self.ttft_s + self.later_tokens_s


class ProfileTimes:
    """The times of calls to the model of one profile, one at a time (batch size 1)."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.tokens_per_s = profile.tokens_per_s()
        self._by_length = sorted_means((point.tokens, point.seconds.typical) for point in profile.ttft)
        rows: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for point in profile.ttft:
            rows[point.image_tokens].append((point.text_tokens, point.seconds.typical))
        self._rows = {tokens: sorted_means(row) for tokens, row in sorted(rows.items())}
        points = [point for point in profile.decoding if point.output_tokens > 1]
        lengths = {point.image_tokens + point.text_tokens for point in points}
        self.inter_token_s = self._inter_token_s(points) if points else 1 / self.tokens_per_s
        """The time between two output tokens, over all cells of Table 4."""
        self._later = sorted_means(
            (length, self._inter_token_s(p for p in points if p.image_tokens + p.text_tokens == length))
            for length in lengths
        ) or ((0, self.inter_token_s),)

    def ttft_s(self, prompt_tokens: int, image_tokens: int | None = None) -> float:
        """Return the time to the first token, interpolated.

        `image_tokens` None: by the length of the prompt, as in Appendix B.2. A shorter prompt than all of the profile
        takes the time of the shortest one. For a longer one, the line through the last two times is continued.
        """
        if image_tokens is None:
            return interpolate(self._by_length, prompt_tokens)
        text = prompt_tokens - image_tokens
        return interpolate(tuple((tokens, interpolate(row, text)) for tokens, row in self._rows.items()), image_tokens)

    def is_beyond(self, prompt_tokens: int, image_tokens: int | None = None) -> bool:
        """Return whether a prompt is longer than those of the profile with images of this size."""
        if image_tokens is None:
            return prompt_tokens > self._by_length[-1][0]
        if image_tokens > max(self._rows):
            return True
        # A profile has shorter texts with large images if the context has no space for longer ones.
        number = bisect_left(list(self._rows), image_tokens)
        between = number > 0 and image_tokens not in self._rows
        rows = list(self._rows.values())[number - between : number + 1]
        return prompt_tokens - image_tokens > min(row[-1][0] for row in rows)

    def call(self, prompt_tokens: int, output_tokens: float, image_tokens: int | None = None) -> CallTime:
        """Return the time of a call. `output_tokens` may be an average."""
        return CallTime(
            ttft_s=self.ttft_s(prompt_tokens, image_tokens),
            decoding_s=output_tokens / self.tokens_per_s,
            later_tokens_s=max(0, output_tokens - 1) * self.later_token_s(prompt_tokens),
            beyond=self.is_beyond(prompt_tokens, image_tokens),
        )

    def later_token_s(self, prompt_tokens: int) -> float:
        """Return the time of each token after the first one, interpolated by the length of the prompt. Outside of the
        lengths of Table 4, it is that of the nearest length."""
        shortest, longest = self._later[0][0], self._later[-1][0]
        return interpolate(self._later, min(max(prompt_tokens, shortest), longest))

    def _inter_token_s(self, points: Iterable[DecodingPoint]) -> float:
        """Return the time between two output tokens: that of some cells of Table 4 without their TTFT, divided by their
        later tokens."""
        spent, tokens = 0.0, 0
        for point in points:
            spent += point.seconds.typical - self.ttft_s(point.image_tokens + point.text_tokens, point.image_tokens)
            tokens += point.output_tokens - 1
        return max(0.0, spent / tokens)


NEAR = 1.02
"""Points whose numbers of tokens differ by less are one point: between them, noise would make a steep line."""


def sorted_means(points: Iterable[tuple[int, float]]) -> Points:
    """Return points sorted by their tokens. Those with almost the same tokens become one with their means."""
    groups: list[list[tuple[int, float]]] = []
    for point in sorted(points):
        if groups and point[0] <= NEAR * groups[-1][0][0]:
            groups[-1].append(point)
        else:
            groups.append([point])
    return tuple((round(fmean(tokens for tokens, _ in one)), fmean(s for _, s in one)) for one in groups)


def interpolate(points: Sequence[tuple[int, float]], tokens: int) -> float:
    """Return the value at `tokens`: constant before the first point, linear between two points, and on the line of the
    last two points after the last one. This line does not fall: a longer prompt does not take less time."""
    if len(points) == 1 or tokens <= points[0][0]:
        return points[0][1]
    end = min(bisect_left(points, tokens, key=lambda point: point[0]), len(points) - 1)
    (before, low), (after, high) = points[end - 1 : end + 1]
    slope = (high - low) / (after - before)
    return high + max(0.0, slope) * (tokens - after) if tokens > after else low + slope * (tokens - before)
