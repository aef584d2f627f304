"""The calls of runs with the times of profiles: which profile is for which model, and the sums by stage."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lmms_eval_mai.contract import Side, Stage
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.profiles.profile import Profile
from lmms_eval_mai.profiles.times import ProfileTimes
from lmms_eval_mai.reports.command import identity
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.records import CallCost, Method, Run


@dataclass(frozen=True, slots=True)
class StageTime:
    """The calls of one model in one stage, one after another. All seconds are sums."""

    side: Side
    stage: Stage
    calls: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    ttft_s: float = 0.0
    decoding_s: float = 0.0
    corrected_s: float = 0.0
    """Without the double TTFT."""
    beyond: int = 0
    """Calls whose prompt is longer than all of the profile's."""

    @property
    def equation_s(self) -> float:
        """The time by Eq. 27."""
        return self.ttft_s + self.decoding_s

    def add(self, call: CallCost, times: ProfileTimes) -> "StageTime":
        """Return the sum with one more call."""
        found = times.call(call.prompt_tokens, call.output_tokens, call.image_tokens)
        return replace(
            self,
            calls=self.calls + 1,
            prompt_tokens=self.prompt_tokens + call.prompt_tokens,
            output_tokens=self.output_tokens + call.output_tokens,
            ttft_s=self.ttft_s + found.ttft_s,
            decoding_s=self.decoding_s + found.decoding_s,
            corrected_s=self.corrected_s + found.corrected_s,
            beyond=self.beyond + found.beyond,
        )


@dataclass
class Profiles:
    """The profiles of one device."""

    profiles: Sequence[Profile]
    names: Mapping[Side, str] = field(default_factory=dict)
    """Side -> the profile of its calls, whatever its model is. Other models have their own profiles."""

    def __post_init__(self) -> None:
        """Raises `ArgumentError` if profiles contradict each other, or a name is unknown."""
        devices = {one.device: one for one in self.profiles}
        if len(devices) > 1:
            named = " and ".join(f"{one.source} ({device})" for device, one in devices.items())
            raise ArgumentError(f"The profiles are of different devices: {named}. Give those of one device.")
        models: dict[str, Profile] = {}
        for one in self.profiles:
            if one.model in models:
                both = f"{models[one.model].source} and {one.source}"
                raise ArgumentError(f"{both} are both profiles of {one.model}. Give only one of them.")
            models[one.model] = one
        self._times: dict[str, ProfileTimes] = {}
        for side, name in self.names.items():
            if name not in {known for one in self.profiles for known in (one.name, one.model)}:
                known = ", ".join(one.name for one in self.profiles)
                raise ArgumentError(f"--{side} {name} is not a profile. The profiles are: {known}.")

    @property
    def device(self) -> str:
        """The device of the profiles."""
        return self.profiles[0].device if self.profiles else ""

    def of(self, side: Side, model: str) -> ProfileTimes | None:
        """Return the times of the calls of one side of a pair. None: no profile has this model."""
        name = self.names.get(side, model)
        for profile in self.profiles:
            if name in (profile.model, profile.name, identity(profile.model)):
                return self._times.setdefault(profile.model, ProfileTimes(profile))
        return None

    def of_run(self, run: Run) -> dict[Side, ProfileTimes] | None:
        """Return the times of both sides of a run. None: a profile is missing."""
        found = {side: self.of(side, model) for side, model in models(run).items()}
        return {side: times for side, times in found.items() if times is not None} if all(found.values()) else None

    def missing(self, run: Run) -> list[str]:
        """Return the models of a run that no profile has."""
        return [model for side, model in models(run).items() if self.of(side, model) is None]


def models(run: Run) -> dict[Side, str]:
    """Return the model of each side that makes calls. A model alone may be the small or the large one of its pair."""
    sides = {call.side for document in run.documents for call in document.calls}
    method = run.method
    both: dict[Side, str] = {"small": method.small or method.model, "large": method.model}
    return {side: model for side, model in both.items() if side in sides}


def has_calls(run: Run) -> bool:
    """Return whether all documents of a run have their calls."""
    return bool(run.documents) and all(document.calls for document in run.documents)


def timed_runs(evidence: Evidence, benchmark: str) -> Iterator[Run]:
    """Yield the runs of a benchmark with calls: Full RT, MAI, and models alone. If there is no run of the small model
    with its thinking, the thinking of Full RT is one."""
    for mode in ("transfer", "cascade", "alone"):
        yield from (run for run in evidence.of(mode, benchmark) if has_calls(run))
    for run in evidence.of("transfer", benchmark):
        method = run.method.alone("small", run.method.variant)
        if has_calls(run) and evidence.get(benchmark, method) is None:
            yield _thinking(run, method)


def stage_times(run: Run, times: Mapping[Side, ProfileTimes]) -> list[StageTime]:
    """Return the calls of a run by side and stage, in the order of the first document that makes them."""
    found: dict[tuple[Side, Stage], StageTime] = {}
    for document in run.documents:
        for call in document.calls:
            key = call.side, call.stage
            found[key] = found.get(key, StageTime(*key)).add(call, times[call.side])
    return list(found.values())


def _thinking(run: Run, method: Method) -> Run:
    documents = tuple(
        replace(document, calls=tuple(call for call in document.calls if call.stage == "think"))
        for document in run.documents
    )
    return replace(run, method=method, documents=documents, derived=True)
