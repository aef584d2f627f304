"""The plan of planned.py and predict.py: documents with the lengths (Table 5) and the exits (Table 10) of the paper.

All methods get the same documents, and the steps of a method say which calls a document gets. An answer of the small
model or after thinking agrees with the large model's short answer on as many documents as in Table 10, and with no
other answer. The large model is sure where the short answers agree, unless a row has its own share that thinks.

Hard documents, on which the short answers disagree, think longer than easy ones, as much as the seconds of Table 11
say, and the means over all documents are those of Table 5. The length belongs to the document: a row that thinks more
often also thinks on easy ones, which is shorter.

Not from the paper: the length of thinking is log-normal with sigma 0.4, each document has one factor for all of it, and
all hard documents, both models and both prompts (R and E) have the same mean factor.
"""

import argparse
import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple, get_args

from lmms_eval_mai.analysis import paper_numbers, read
from lmms_eval_mai.contract import PROMPTS, SIDES, CallPrompt, Side, Variant
from lmms_eval_mai.method import files
from lmms_eval_mai.method.methods import Method, Stop, asks_of, prompt_of

BENCHMARKS = ("pope", "mmbench_en_dev", "mmmu_val", "chartqa", "infovqa_val", "realworldqa")
HARD_FACTORS = dict(zip(BENCHMARKS, (1.83, 1.43, 1.16, 1.22, 1.31, 1.0), strict=True))
"""The mean thinking of hard documents by that of all: from Table 11 by Eq. 27, with prompts of 512 tokens (with 320, as
in the table of README.md, at most 3% more)."""
ROWS = ("large:R", "large:S", "full_rt", "mai", "mai_confidence", "own_thinking", "own_thinking:E")


@dataclass(frozen=True)
class Row:
    """A method, the prompt of its task, and the share of documents on which the large model is not sure."""

    title: str
    method: Method
    variant: Variant
    think_share: float | None = None
    """None: as often as the short answers disagree."""

    def prompt(self, name: str) -> tuple[Side, CallPrompt]:
        """Return the model and the prompt of a call by its name in the steps."""
        ask = next(ask for ask in self.method.asks if ask.name == name)
        return ask.side, prompt_of(ask, self.variant, "R")


def read_row(text: str) -> Row:
    parts = text.split(":")
    name, variant, share = parts + ["R", ""][len(parts) - 1 :]
    if variant not in get_args(Variant):
        raise ValueError("the prompt must be S, E or R")
    return Row(text, files.load(name), variant, float(share) if share else None)


class Planned(NamedTuple):
    """One call."""

    side: Side
    prompt: CallPrompt
    output_tokens: int
    thinking_tokens: int
    """Tokens of another call's thinking in its prompt."""
    is_first: bool
    """Whether the model has not seen the image of the document."""


@dataclass(frozen=True)
class Document:
    difficulty: float
    """The share of the documents that are easier."""
    factor: float
    """The length of its thinking by the mean."""


@dataclass(frozen=True)
class Plan:
    """The documents of one benchmark."""

    benchmark: str
    lengths: Mapping[str, Mapping[str, float]]
    """Side -> S, E, R -> mean output tokens."""
    exits: tuple[float, float]
    """Percent of agree_short and of agree_think."""
    documents: tuple[Document, ...]

    def output_tokens(self, document: Document, side: Side, prompt: CallPrompt) -> int:
        factor = document.factor if PROMPTS[prompt].thinks else 1.0
        return max(1, round(factor * self.lengths[side][PROMPTS[prompt].variant or "S"]))

    def answer(self, document: Document, side: Side, prompt: CallPrompt) -> str:
        is_short = not PROMPTS[prompt].thinks and prompt != "transfer"
        agree = self.exits[0] if is_short else sum(self.exits)
        is_same = 100 * document.difficulty < agree or (side, is_short) == ("large", True)
        return "same" if is_same else f"{side} {prompt}"

    def is_sure(self, document: Document, row: Row) -> bool:
        return document.difficulty < (self.exits[0] / 100 if row.think_share is None else 1 - row.think_share)

    def calls(self, row: Row, document: Document) -> Iterator[list[Planned]]:
        """Yield the calls that a document gets; those at the same time together."""
        made: list[tuple[Side, CallPrompt]] = []
        for step in row.method.steps:
            if isinstance(step, Stop):
                answers = {self.answer(document, *row.prompt(name)) for name in step.agree}
                if len(answers) < 2 and (not step.sure or self.is_sure(document, row)):
                    return
            new = []
            for ask in asks_of(step):
                if (key := row.prompt(ask.name)) not in made:  # a call with prompt E may be both `explain` and `think`
                    of = self.output_tokens(document, *row.prompt(ask.of)) if ask.of else 0
                    is_first = all(side != ask.side for side, _ in made)
                    new.append(Planned(*key, self.output_tokens(document, *key), of, is_first))
                    made.append(key)
            if new:
                yield new


def plan(benchmark: str, documents: int, given: argparse.Namespace) -> Plan:
    """Return the plan of a benchmark. Documents that are about equally difficult have all lengths, so few documents
    have the means of many. Raises `ValueError` if hard documents think so long that nothing is left for easy ones.
    If only the rounding of few documents leaves nothing, the hard ones get their part of the thinking of many."""
    number = paper_numbers.number
    exits = given.exits or [number(10, "MAI 8B + 2B-R", benchmark, exit) for exit in ("agree_short", "agree_think")]
    lengths = {
        side: json.loads(of) if "{" in of else {x: number(5, f"{of}-{x}", benchmark, "tokens") for x in "SER"}
        for side, of in zip(("small", "large"), given.lengths, strict=True)
    }
    short, think = exits
    ranks = [NormalDist().inv_cdf((0.5 + number * (math.sqrt(5) - 1) / 2) % 1) for number in range(documents)]
    spread, difficulties = [math.exp(0.4 * rank) for rank in ranks], [(n + 0.5) / documents for n in range(documents)]
    easy = sum(100 * difficulty < short for difficulty in difficulties)
    share, factor = 1 - short / 100, given.hard_factor or HARD_FACTORS[benchmark]
    if short and share * factor > 1:
        raise ValueError(
            f"{share:.1%} of the documents of {benchmark} are hard, and {factor:g} times as long as all is more than "
            f"all together: give --hard_factor below {1 / share:.2f}."
        )
    hard = (factor if easy else 1.0) * (documents - easy)
    if hard > documents:
        hard = share * factor * documents
    groups = (spread[:easy], documents - hard), (spread[easy:], hard)
    factors = [one * total / sum(group) for group, total in groups for one in group]
    made = [*map(Document, difficulties, factors)]
    random.Random(given.seed).shuffle(made)
    return Plan(benchmark, lengths, (short, think), tuple(made))


OF_LETTER = {"S": ("simple", "task"), "E": ("explain",), "R": ("think", "native")}
"""Letter of a length -> what a call with it asks."""


def measured(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a plan by the runs in a folder, such as one of `compare`: mean lengths, exits of MAI, how
    much longer hard documents think, and the methods whose lengths are known. Of several runs it takes the one with the
    most documents. Raises `ValueError`."""
    samples, calls = read([folder])
    runs = [run for _, run in samples[samples.method == "mai"].groupby("run")]
    if not runs or samples.benchmark.nunique() > 1:
        raise ValueError(f"--from {folder}: give the folder of one task with a run of mai.")
    mai = max(runs, key=len).set_index("doc_id")
    sizes, lengths, thinking = samples.groupby("run").size(), {}, None
    for side in SIDES:
        lengths[side] = {}
        for letter, prompts in OF_LETTER.items():
            found = calls[(calls.side == side) & calls.prompt.isin(prompts)].groupby("run")
            whole = [run_calls for run, run_calls in found if len(run_calls) == sizes[run]]
            if whole:
                tokens = max(whole, key=len).set_index("doc_id").output_tokens
                lengths[side][letter] = float(tokens.mean())
                thinking = tokens if (side, letter) == ("small", "R") else thinking
    if thinking is None or not (common := mai.index.intersection(thinking.index)).size:
        raise ValueError(
            f"--from {folder}: in no run does the small model think with prompt R on all documents, also on those of "
            "the run of mai. Add a run of full_rt with think=R."
        )
    is_hard = mai.exit != "agree_short"
    hard = common[is_hard[common]]
    prompts = {row.title: [row.prompt(ask.name) for ask in row.method.asks] for row in given.methods}
    known = [title for title, of in prompts.items() if all((PROMPTS[p].variant or "S") in lengths[s] for s, p in of)]
    if not known:
        raise ValueError(f"--from {folder}: the runs do not have all lengths of any of {', '.join(prompts)}.")
    return {
        "benchmarks": [str(mai.benchmark.iloc[0])],
        "lengths": [json.dumps(lengths[side]) for side in SIDES],
        "exits": [100 * float((mai.exit == exit).mean()) for exit in ("agree_short", "agree_think")],
        "hard_factor": float(thinking[hard].mean() / thinking[common].mean()) if hard.size else 1.0,
        "methods": [row for row in given.methods if row.title in known],
    }


def options_of(options: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the options that the user gave, with those of `--from`."""
    given = options.parse_args()
    if given.runs_of is not None:
        for name in ("benchmarks", "lengths", "exits", "hard_factor"):
            if getattr(given, name) is not options.get_default(name):
                options.error(f"--from {given.runs_of} takes --{name} from the runs: leave one of the two out.")
        try:
            found = measured(given.runs_of, given)
        except ValueError as error:
            options.error(str(error))
        out = [row.title for row in given.methods if row not in found["methods"]]
        vars(given).update(found)
        print(
            f"By the runs in {given.runs_of}: lengths {', '.join(given.lengths)}, exits {given.exits[0]:.1f} "
            f"and {given.exits[1]:.1f}%, hard questions {given.hard_factor:.2f} times as long. Left out, because the "
            f"runs do not have their lengths: {', '.join(out) or 'none'}."
        )
    return given


def above_0(text: str) -> float:
    if not float(text) > 0:
        raise ValueError("the factor must be above 0")
    return float(text)


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of a plan."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--benchmarks", nargs="+", choices=BENCHMARKS, default=BENCHMARKS, help="for the lengths and exits of the paper"
    )
    methods = {"nargs": "+", "type": read_row, "default": [*map(read_row, ROWS)]}
    made.add_argument("--methods", help="NAME or FILE.yaml[:PROMPT[:SHARE THAT THINKS]]; PROMPT: S, E or R", **methods)
    lengths = 'models of Table 5, or your own lengths: \'{"S": 4, "E": 90, "R": 250}\''
    made.add_argument("--lengths", nargs=2, metavar=("SMALL", "LARGE"), default=["2B", "8B"], help=lengths)
    made.add_argument("--exits", nargs=2, type=float, help="your own: percent of agree_short and of agree_think")
    hard = "thinking where the short answers disagree, by that on all documents, above 0; 1: equal (default: Table 11)"
    made.add_argument("--hard_factor", type=above_0, help=hard)
    from_help = "lengths, exits and hard factor of your own runs, such as the folder of lmms-eval-mai compare"
    made.add_argument("--from", dest="runs_of", type=Path, metavar="FOLDER", help=from_help)
    made.add_argument("--seed", type=int, default=1)
    return made
