"""Forced output lengths and exits: a planned answer for every call, with the figures of one of the paper's benchmarks.

The lengths are those of Table 5 for the pair 2B and 8B, and the exits those of Table 10, in random order. The paper has
averages only. Thinking has lengths from a log-normal distribution with sigma 0.35. The documents on which the models
disagree have longer thinking: its mean is the one that the paper's MAI needs by Eq. 27 (Table 11; docs/latency.md). The
other documents have shorter thinking, so that the mean over all documents is that of Table 5. All seeds are fixed.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lmms_eval_mai.contract import SIDES, CallKey, Side, Stage
from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.sample import EXITS, Exit
from lmms_eval_mai.reports import paper_numbers

SEED = 260404929
SIGMA = 0.35
NAMES: dict[Side, str] = {"small": "2B", "large": "8B"}
PREFIX = "paper:"
DISAGREEING = {"pope": 500.0, "mmbench_en_dev": 823.0, "mmmu_val": 3429.0, "chartqa": 317.0, "infovqa_val": 255.0}
"""Benchmark -> mean tokens of a thinking of the small model if the short answers disagree. RealWorldQA is left out: its
time in Table 11 contradicts Table 5."""
LEAST = 8
"""Tokens of the shortest thinking."""
# Each word is one token in most tokenizers, so n words of thinking are about n tokens of the transfer prompt.
WORDS = ["the", "image", "shows", "a", "chart", "is", "value", "in", "option", "answer", "step", "thinking", "question"]


@dataclass(frozen=True)
class Step:
    """The planned answer of one call. The engine decodes exactly `tokens` tokens, and `text` replaces their text."""

    tokens: int
    text: str


@dataclass(frozen=True)
class Plan:
    """The planned answers of all calls of a run, and the exits of its samples in the mode `cascade`."""

    benchmark: str
    exits: tuple[Exit, ...]
    steps: Mapping[tuple[int, Side, Stage], Step]

    def step(self, key: CallKey) -> Step:
        """Return the planned answer of one call."""
        return self.steps[key.doc_id, key.side, key.stage]

    def cascade_stages(self, doc_id: int) -> list[tuple[Side, Stage]]:
        """Return the calls that the cascade makes for a document."""
        return calls_until(self.exits[doc_id])


def calls_until(exit: Exit) -> list[tuple[Side, Stage]]:
    """Return the calls that the cascade makes for a document with this exit."""
    found: list[tuple[Side, Stage]] = [("small", "short"), ("large", "short")]
    if exit != "agree_short":
        found.append(("small", "think"))
    if exit == "transfer":
        found.append(("large", "transfer"))
    return found


def benchmark_of(lengths: str) -> str | None:
    """Return the benchmark of `paper:BENCHMARK`. None for `own`: the models end their answers. Raises
    `ArgumentError`."""
    if lengths == "own":
        return None
    known = list(paper_numbers.load()["benchmarks"])
    name = lengths.removeprefix(PREFIX)
    if not lengths.startswith(PREFIX) or name not in known:
        choices = ", ".join(["own", *(PREFIX + one for one in known)])
        hint = did_you_mean(name, known)
        raise ArgumentError(f"--lengths {lengths} is unknown: choose one of {choices}.{hint}")
    return name


def make_plan(benchmark: str, samples: int) -> Plan:
    """Plan a run. The large model's short answer is always 7; the small model's is 7 where the two must agree."""
    means = {side: paper_numbers.table(5)["rows"][name][benchmark] for side, name in NAMES.items()}
    exits = planned_exits(benchmark, samples)
    short = {side: spread([1.0] * samples, means[side][0], least=1) for side in SIDES}
    thinking = {
        "small": _small_thinking(benchmark, exits, means["small"][2]),
        "large": _drawn(samples, means["large"][2]),
    }
    steps: dict[tuple[int, Side, Stage], Step] = {}
    for doc_id, exit in enumerate(exits):
        words, tokens = _words(doc_id), thinking["small"][doc_id]
        steps[doc_id, "large", "short"] = Step(short["large"][doc_id], "[[7]]")
        steps[doc_id, "small", "short"] = Step(short["small"][doc_id], "[[7]]" if exit == "agree_short" else "[[3]]")
        answer = "[[5]]" if exit == "transfer" else "[[7]]"
        steps[doc_id, "small", "think"] = Step(tokens, f"{words(tokens)} {answer}")
        steps[doc_id, "large", "think"] = Step(thinking["large"][doc_id], "[[7]]")
        steps[doc_id, "large", "transfer"] = Step(short["large"][doc_id], "6")
    return Plan(benchmark, tuple(exits), steps)


def planned_exits(benchmark: str, samples: int) -> list[Exit]:
    """Return one exit per sample, in the proportions of Table 10 and in random order. Samples that are left over by
    rounding get the first exit."""
    counts = paper_numbers.table(10)["rows"][benchmark]["exits"]
    documents = paper_numbers.documents(benchmark) or sum(counts)
    shares = [round(count * samples / documents) for count in counts]
    shares[0] = samples - sum(shares[1:])
    exits = [exit for exit, count in zip(EXITS["cascade"], shares, strict=True) for _ in range(count)]
    random.Random(SEED).shuffle(exits)
    return exits


def spread(weights: Sequence[float], mean: float, least: int) -> list[int]:
    """Return whole numbers in the proportions of the weights, at least `least`. Their mean is about `mean`."""
    scale = mean * len(weights) / sum(weights) if weights else 0.0
    found, total = [], 0.0
    for weight in weights:
        before, total = round(total), total + weight * scale
        found.append(max(least, round(total) - before))
    return found


def _small_thinking(benchmark: str, exits: Sequence[Exit], mean: float) -> list[int]:
    """Return the tokens of the small model's thinking for each document."""
    thinkers = [doc_id for doc_id, exit in enumerate(exits) if exit != "agree_short"]
    others = [doc_id for doc_id, exit in enumerate(exits) if exit == "agree_short"]
    longer = DISAGREEING.get(benchmark, mean)
    table = paper_numbers.table(10)["rows"][benchmark]["exits"]
    share = sum(table[1:]) / sum(table)
    shorter = (mean - share * longer) / (1 - share)
    found = dict(zip(thinkers, _drawn(len(thinkers), longer), strict=True))
    found |= zip(others, _drawn(len(others), shorter), strict=True)
    return [found[doc_id] for doc_id in range(len(exits))]


def _drawn(count: int, mean: float) -> list[int]:
    dice = random.Random(SEED)
    return spread([dice.lognormvariate(0, SIGMA) for _ in range(count)], mean, LEAST)


def _words(doc_id: int) -> Callable[[int], str]:
    dice = random.Random(f"thinking {doc_id}")
    return lambda count: " ".join(dice.choices(WORDS, k=count))
