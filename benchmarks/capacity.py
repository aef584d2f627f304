"""How many samples an hour GPUs answer: computed from profiles of batches, not measured.

The seconds of each model are the sums of `lmms-eval-mai estimate` for full batches: output tokens of Table 5, exits of
Table 10, and prompts of 320 tokens, whose image is in the cache at a second call to the same model. Either each GPU
runs both models, whose seconds add up, or each GPU runs one model, and the GPUs are divided so that the slower side
needs as little time as possible. By default the times are the paper's with assumed batches (`assumed_batches.py`).

    python benchmarks/capacity.py                                           # both pairs of the paper, on H100 GPUs
    python benchmarks/capacity.py --small profile-a.json --large profile-b.json --batch-size 32

The paper has the exits of one pair, 8B + 2B. For another pair, the same exits are assumed.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from assumed_batches import BATCH_SIZE, profile
from common import print_json, print_table
from forced_lengths import Lengths

from lmms_eval_mai.bench.lengths import calls_until
from lmms_eval_mai.contract import SIDES, CallKey, Prompt, Side
from lmms_eval_mai.profiles import files
from lmms_eval_mai.profiles.profile import Profile
from lmms_eval_mai.profiles.throughput import BatchTimes, batch_sizes

GPUS = (1, 2, 4, 8)


@dataclass(frozen=True)
class EngineTime:
    """Seconds of one GPU for one document, on average."""

    small: float
    large: float

    def both(self, gpus: int) -> float:
        """Return the documents per hour if each GPU runs all models of the method."""
        return 3600 * gpus / (self.small + self.large)

    def divided(self, gpus: int) -> tuple[float, int]:
        """Return the documents per hour if each GPU runs one model, and the number of GPUs of the small model."""
        hourly = {n: 3600 / max(self.small / n, self.large / (gpus - n)) for n in range(1, gpus)}
        best = max(hourly, key=lambda n: hourly[n])
        return hourly[best], best


def cascade(lengths: Lengths, profiles: dict[Side, Profile], batch_size: int) -> EngineTime:
    """Return the time of MAI."""
    found = dict.fromkeys(SIDES, 0.0)
    times = {side: BatchTimes(profiles[side], batch_size) for side in SIDES}
    scripts = {side: lengths.script(side, "cascade") for side in SIDES}
    for doc_id, exit in enumerate(lengths.exits):
        for side, stage in calls_until(exit):
            answer = scripts[side](Prompt((), CallKey("", doc_id, 0, side, stage)))
            call = times[side].call(answer.prompt_tokens, answer.output_tokens, answer.cached_tokens)
            found[side] += call.total_s
    return EngineTime(found["small"] / lengths.documents, found["large"] / lengths.documents)


def large_alone(lengths: Lengths, large: Profile, batch_size: int) -> EngineTime:
    """Return the time of the large model with its own thinking (large R)."""
    times, script = BatchTimes(large, batch_size), lengths.script("large", "large")
    total_s = 0.0
    for doc_id in range(lengths.documents):
        answer = script(Prompt((), CallKey("", doc_id, 0, "large", "think")))
        total_s += times.call(answer.prompt_tokens, answer.output_tokens).total_s
    return EngineTime(0.0, total_s / lengths.documents)


def rows(benchmark: str, pairs: Sequence[tuple[Profile, Profile]], batch_size: int) -> list[list[str]]:
    """Return the rows of MAI and of the large model alone, for each pair."""
    found: list[list[str]] = []
    for small, large in pairs:
        lengths = Lengths(benchmark, {"small": _table_5_name(small, "2B"), "large": _table_5_name(large, "8B")})
        mai = cascade(lengths, {"small": small, "large": large}, batch_size)
        alone = large_alone(lengths, large, batch_size)
        for name, time in ((f"MAI {large.name} + {small.name}-R", mai), (f"{large.name}-R", alone)):
            cells = [benchmark, name, f"{1000 * time.small:.0f}", f"{1000 * time.large:.0f}"]
            found.append([*cells, "all on each GPU", *(f"{time.both(gpus):,.0f}" for gpus in GPUS)])
            if time.small:
                divided = [time.divided(gpus) for gpus in GPUS[1:]]
                split = [f"{count:,.0f} ({n} + {gpus - n})" for (count, n), gpus in zip(divided, GPUS[1:], strict=True)]
                found.append([*cells, "one on each GPU", "", *split])
    return found


def _table_5_name(profile: Profile, default: str) -> str:
    """Return the model of Table 5 whose lengths are used."""
    return profile.name if profile.name in ("2B", "4B", "8B") else default


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=Path, help="profile of the small model, with batches")
    parser.add_argument("--large", type=Path, help="profile of the large model, with batches")
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE, help="a batch size of the profiles")
    parser.add_argument("--benchmarks", nargs="+", default=["pope", "chartqa"])
    given = parser.parse_args()
    if bool(given.small) != bool(given.large):
        parser.error("give both --small and --large, or none")
    if given.small:
        pairs = [(files.read(given.small), files.read(given.large))]
    else:
        pairs = [(profile(small), profile("8B")) for small in ("2B", "4B")]
    if given.batch_size not in (known := batch_sizes([one for pair in pairs for one in pair])):
        parser.error(f"--batch-size {given.batch_size} is not one of all profiles: they have {known}")
    lines = [row for benchmark in given.benchmarks for row in rows(benchmark, pairs, given.batch_size)]
    headers = [
        "Benchmark",
        "Method",
        "Small, GPU ms",
        "Large, GPU ms",
        "Models",
        *(f"{n} GPU{'s' * (n > 1)}" for n in GPUS),
    ]
    print_table(f"Samples per hour, computed for full batches of {given.batch_size}", headers, lines)
    print_json("capacity", {"batch_size": given.batch_size, "rows": lines})


if __name__ == "__main__":
    main()
