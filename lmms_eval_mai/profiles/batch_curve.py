"""The time of any number of calls at once: between the measured batch sizes, it is interpolated."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.profiles.profile import Profile
from lmms_eval_mai.profiles.throughput import BatchTimes, batch_sizes
from lmms_eval_mai.profiles.times import interpolate


@dataclass(frozen=True, slots=True)
class CallTimes:
    """The times of one kind of call, for each measured batch size."""

    prefill_s: tuple[float, ...]
    """The prefill of a whole batch of such calls."""
    step_s: tuple[float, ...]
    """One decoding step of a whole batch of such calls."""


class BatchCurve:
    """The times of a profile by the number of calls that run at the same time."""

    def __init__(self, profile: Profile) -> None:
        """Raises `ArgumentError` if the profile has no batches."""
        self.sizes = batch_sizes([profile])
        if not self.sizes:
            raise ArgumentError(
                f"The profile {profile.source or profile.name} has no measurements of batches. Measure the "
                "model with lmms-eval-mai profile --engine vllm."
            )
        self._times = [BatchTimes(profile, size) for size in self.sizes]
        self.call = functools.lru_cache(4096)(self._call)
        """Returns the `CallTimes` of a call with these prompt tokens and cached tokens."""

    def _call(self, prompt_tokens: int, cached_tokens: int) -> CallTimes:
        """Return the times of a call. `cached_tokens`: those of the prompt that need no prefill."""
        shares = [times.call(prompt_tokens, 2, cached_tokens) for times in self._times]  # 2: one later token
        return CallTimes(
            prefill_s=tuple(size * one.prefill_s for size, one in zip(self.sizes, shares, strict=True)),
            step_s=tuple(size * one.decoding_s for size, one in zip(self.sizes, shares, strict=True)),
        )

    def at(self, batch_s: Sequence[float], number: int) -> float:
        """Return the time of a batch of `number` calls. `batch_s`: the time for each measured size. A batch that is
        larger than all measured ones is on the line of the last two."""
        return interpolate(tuple(zip(self.sizes, batch_s, strict=True)), number)
