"""The time of many calls at once: the seconds that an engine needs if it always works on full batches.

The estimate is bound by throughput. It has no waiting for the last calls, and each engine always has enough calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lmms_eval_mai.profiles.profile import BatchPoint, Profile
from lmms_eval_mai.profiles.times import Points, interpolate, sorted_means


@dataclass(frozen=True, slots=True)
class EngineSeconds:
    """The time of one engine."""

    prefill_s: float = 0.0
    decoding_s: float = 0.0

    @property
    def total_s(self) -> float:
        """The seconds in which the engine works."""
        return self.prefill_s + self.decoding_s

    def __add__(self, other: "EngineSeconds") -> "EngineSeconds":
        return EngineSeconds(self.prefill_s + other.prefill_s, self.decoding_s + other.decoding_s)


class BatchTimes:
    """The time of calls at one batch size."""

    def __init__(self, profile: Profile, batch_size: int) -> None:
        """The profile must have measurements of this batch size."""
        points = [point for point in profile.batches if point.batch_size == batch_size]
        self._prefill: Points = sorted_means((_length(point), _prefill_s(point)) for point in points)
        self._decoding: Points = sorted_means((_length(point), _token_s(point)) for point in points)

    def call(self, prompt_tokens: int, output_tokens: float, cached_tokens: int = 0) -> EngineSeconds:
        """Return the share of one call in the time of the engine. `cached_tokens`: those of the prompt that need no
        prefill. Each output token attends to them too, so its time is that of the whole prompt. `output_tokens` may be
        an average."""
        return EngineSeconds(
            prefill_s=_scaled(self._prefill, max(1, prompt_tokens - cached_tokens)),
            decoding_s=max(0, output_tokens - 1) * interpolate(self._decoding, prompt_tokens),
        )


def batch_sizes(profiles: Sequence[Profile]) -> list[int]:
    """Return the batch sizes that all profiles have."""
    sizes = [{point.batch_size for point in profile.batches} for profile in profiles]
    return sorted(set.intersection(*sizes)) if sizes else []


def _length(point: BatchPoint) -> int:
    return point.image_tokens + point.text_tokens


def _prefill_s(point: BatchPoint) -> float:
    """Return the time of one request until its first token, as its share of the batch."""
    return point.first_token.typical / point.batch_size


def _token_s(point: BatchPoint) -> float:
    """Return the time of one later token, as its share of the batch."""
    later = max(0.0, point.seconds.typical - point.first_token.typical)
    return later / max(1, point.output_tokens - 1) / point.batch_size


def _scaled(points: Points, tokens: int) -> float:
    """Return the time of a prefill. In a full batch it is proportional to the prompt beyond the measured lengths."""
    shortest, longest = points[0], points[-1]
    if tokens < shortest[0]:
        return shortest[1] * tokens / shortest[0]
    return longest[1] * tokens / longest[0] if tokens > longest[0] else interpolate(points, tokens)
