"""The estimated time of the calls of a plan, from latency profiles and expected lengths: with one TTFT (`CallTime`), or
in full batches (`BatchTimes`)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from lmms_eval_mai.profiles.throughput import BatchTimes, batch_sizes
from lmms_eval_mai.profiles.times import ProfileTimes
from lmms_eval_mai.reports.call_times import Profiles
from lmms_eval_mai.reports.command import identity
from lmms_eval_mai.reproduce.calls import PlannedCall
from lmms_eval_mai.reproduce.lengths import Length, Lengths
from lmms_eval_mai.reproduce.plan import Run


@dataclass(frozen=True)
class Seconds:
    """A time, from `least` to `most`: some calls depend on answers."""

    least: float = 0.0
    most: float = 0.0

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.least + other.least, self.most + other.most)

    def __str__(self) -> str:
        least, most = (f"{one:,.1f}" if 0 < one < 100 else f"{one:,.0f}" for one in (self.least, self.most))
        return least if least == most else f"{least} to {most}"


@dataclass(frozen=True)
class TimeEstimate:
    """The estimate of a plan."""

    profiles: Profiles
    lengths: Lengths

    def of_run(self, run: Run) -> Seconds | None:
        """Return the time of the calls that no earlier run makes. None: a profile or a length is missing."""
        certain, possible = (self._seconds(run, calls) for calls in (run.new.certain, run.new.possible))
        if certain is None or possible is None:
            return None
        return Seconds(run.subject.documents * certain, run.subject.documents * (certain + possible))

    def sentences(self, runs: Sequence[Run]) -> list[str]:
        """Return the sum of these runs, the assumptions, and what has no estimate."""
        times = [self.of_run(run) for run in runs]
        known = [seconds for seconds in times if seconds is not None]
        missing = [run for run, seconds in zip(runs, times, strict=True) if seconds is None]
        found = []
        if any(seconds.most for seconds in known):
            where = f" in {len(known)} of {len(times)} runs" if missing else ""
            found += [
                f"Estimated time of the calls to make{where}: {sum(known, Seconds())} s on {self.profiles.device}, "
                f"{self._mode()}. Starting the engines is not included.",
                self.lengths.source(),
            ]
        return [*found, *self._gaps([(run, call) for run in missing for call in _all(run)])]

    def _gaps(self, calls: Sequence[tuple[Run, PlannedCall]]) -> Iterator[str]:
        """Yield a sentence for each reason why runs with these calls have no estimate."""
        if models := sorted({identity(call.model) for _, call in calls if self._times(call) is None}):
            known = ", ".join(identity(one.model) for one in self.profiles.profiles)
            yield (
                f"No profile is of {' or '.join(models)}: the profiles are of {known}. So some runs have no estimate. "
                "Measure a profile with lmms-eval-mai profile."
            )
        if subjects := sorted({run.subject.name for run, call in calls if self.lengths.of(run, call) is None}):
            yield (
                f"The lengths of the answers to {', '.join(subjects)} are not known, so some runs have no estimate. "
                "First run this command with --limit 20 and another --output_path, and give that folder as --lengths."
            )

    @cached_property
    def _batch_size(self) -> int | None:
        """The largest batch size that all profiles have. None: one has no batches."""
        return max(batch_sizes(self.profiles.profiles), default=None)

    def _mode(self) -> str:
        if self._batch_size is None:
            return "one after another; engines that answer several calls at once need less"
        return f"in full batches of {self._batch_size}, if both engines share the device; this is a lower bound"

    def _seconds(self, run: Run, calls: Sequence[PlannedCall]) -> float | None:
        """Return the time of some calls for one document."""
        total = 0.0
        for call in calls:
            times, length = self._times(call), self.lengths.of(run, call)
            if times is None or length is None:
                return None
            total += self._call_s(times, length)
        return total

    def _times(self, call: PlannedCall) -> ProfileTimes | None:
        """Return the profile of the model of a call. None: there is none."""
        return self.profiles.of(call.side, identity(call.model))

    def _call_s(self, times: ProfileTimes, length: Length) -> float:
        prompt = round(length.prompt_tokens)
        if self._batch_size is None:
            return times.call(prompt, length.output_tokens).corrected_s
        batches = BatchTimes(times.profile, self._batch_size)
        return batches.call(prompt, length.output_tokens, round(length.cached_tokens)).total_s


def _all(run: Run) -> tuple[PlannedCall, ...]:
    """Return the calls that no earlier run makes."""
    return (*run.new.certain, *run.new.possible)
