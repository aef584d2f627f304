"""What each method would take: a plan (plan.py), the times of two models, and a simulation of their two engines.

    python -m experiments.latency.predict h100.json l40s.json --at 1 32 256

A file of times is the output of card.py for a card, or of planned.py for this machine. Each engine makes step after
step, with continuous batching and a prefix cache. Engines on one card share it; the main process prepares one prompt
after the other. On a CPU each engine has its own threads, and all three share the cores. The memory of a card does not
limit the batch here.
"""

import heapq
import itertools
import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from experiments.latency.plan import Plan, Planned, Row, options_of, parser, plan
from lmms_eval_mai.contract import PROMPTS

SEQUENCES, BATCHED_TOKENS = 256, 8192
"""vLLM's limits of one step. With 16,384 tokens, as on cards from 70 GiB, the ratios are nearly the same."""
NEAR = 1.05
"""Methods whose times differ by 5% count as equally fast."""


@dataclass
class Open:
    """A document: its calls to come, and how many it waits for."""

    calls: Iterator[list[Planned]]
    waits_for: int = 0


@dataclass
class Job:
    """Work that has begun: on the device (a step), in an engine's process, or in the main process."""

    where: Literal["device", "core", "host"]
    left_ms: float
    then: Callable[[], None]


@dataclass
class Engine:
    """An engine, its requests, and the times of its model."""

    times: Mapping[str, Any]
    waiting: deque[tuple[Planned, Open]] = field(default_factory=deque)
    running: list[tuple[int, int, int, Open]] = field(default_factory=list)
    """A heap: the step of the last token, a number, the context at the end, the document."""
    steps: int = 0
    context: int = 0
    """The tokens of all running requests."""
    is_busy: bool = False


class Simulation:
    """The calls of one method, with `at` documents at a time."""

    def __init__(self, record: Mapping[str, Any], at: int, cards: int = 1) -> None:
        self.record, self.tokens, self.host_ms = record, record["tokens"], record["host_ms"]
        self.engines = {side: Engine(times) for side, times in record["models"].items()}
        self.at, self.cores = at, record.get("cores", math.inf)
        self.cards = len(self.engines) if "cores" in record else cards
        self.numbers = itertools.count()

    def run(self, calls: Sequence[Iterator[list[Planned]]]) -> float:
        """Return the seconds until the calls of all documents are done."""
        self.left, self.jobs, self.queue, now = iter(calls), list[Job](), deque[Job](), 0.0
        for one in itertools.islice(self.left, self.at):
            self._advance(Open(one))
        while self.jobs or self.queue or any(e.waiting or e.running for e in self.engines.values()):
            for engine in self.engines.values():
                if not engine.is_busy and (engine.waiting or engine.running):
                    self._start(engine)
            if self.queue and not any(job.where == "host" for job in self.jobs):
                self.jobs.append(self.queue.popleft())
            steps = sum(job.where == "device" for job in self.jobs)
            all_share = min(1.0, self.cores / len(self.jobs))
            share = {"device": min(all_share, self.cards / max(1, steps)), "core": all_share, "host": all_share}
            passed = min(job.left_ms / share[job.where] for job in self.jobs)
            now += passed
            for job in self.jobs[:]:
                job.left_ms -= passed * share[job.where]
                if job.left_ms < 1e-9:
                    self.jobs.remove(job)
                    job.then()
        return now / 1000

    def _host(self, ms: float, then: Callable[[], None]) -> None:
        """Do something when the main process has had time for it."""
        if ms or self.queue:
            self.queue.append(Job("host", ms, then))
        else:
            then()

    def _advance(self, document: Open) -> None:
        """Make the next calls of a document. If there are none, open the next document."""
        for planned in (calls := next(document.calls, [])):
            ask = partial(self.engines[planned.side].waiting.append, (planned, document))
            self._host(self.host_ms["call"] + self.host_ms["image"] * planned.is_first, ask)
        document.waits_for = len(calls)
        if not calls and (one := next(self.left, None)) is not None:
            self._advance(Open(one))

    def _start(self, engine: Engine) -> None:
        """Begin a step: one token for each running request, and the prompts of new ones."""
        old, context, tokens, images = len(engine.running), engine.context, 0, 0
        engine.steps, engine.is_busy = engine.steps + 1, True
        while engine.waiting and len(engine.running) < SEQUENCES:
            planned, document = engine.waiting[0]
            prompt = self.tokens["image"] + self.tokens["text"] + planned.thinking_tokens
            new = prompt if planned.is_first else self.tokens["later"] + planned.thinking_tokens
            if tokens and tokens + new > BATCHED_TOKENS:
                break
            engine.waiting.popleft()
            tokens, images = tokens + new, images + planned.is_first
            last, end = engine.steps + planned.output_tokens - 1, prompt + planned.output_tokens - 1
            heapq.heappush(engine.running, (last, next(self.numbers), end, document))
            engine.context += prompt - 1
        engine.context += len(engine.running)
        ms = step_ms(self.record, engine.times, old, context, tokens, images)
        core = Job("core", self.record["core_ms"], partial(self._end, engine))
        self.jobs.append(Job("device", ms, partial(self.jobs.append, core)))

    def _end(self, engine: Engine) -> None:
        written, done, engine.is_busy = len(engine.running), list[Open](), False
        while engine.running and engine.running[0][0] <= engine.steps:
            _, _, context, document = heapq.heappop(engine.running)
            engine.context -= context
            done.append(document)
        self._host(self.host_ms["token"] * written, partial(self._deliver, done))

    def _deliver(self, done: Sequence[Open]) -> None:
        for document in done:
            document.waits_for -= 1
            if not document.waits_for:
                self._advance(document)


def interpolated(x: float, points: Sequence[Sequence[float]]) -> float:
    """Return the value at `x` of a line through points (x, value). After the last one the line goes on."""
    (x1, y1), (x2, y2) = points[-2:]
    if x > x2:
        return float(y2 + (y2 - y1) / (x2 - x1) * (x - x2))
    return float(np.interp(x, *zip(*points, strict=True)))


def step_ms(
    record: Mapping[str, Any], times: Mapping[str, Any], sequences: int, context: float, tokens: int, images: int
) -> float:
    """Return the time of a step: a token of each of `sequences`, which have `context` tokens in all, and the `tokens`
    and `images` of new prompts."""
    ms = 0.0
    if sequences:
        batches, *columns = zip(*times["decode_ms"], strict=True)
        near, far = (np.interp(sequences, batches, column) for column in columns)
        low, high = record["contexts"]
        ms += near + (far - near) * (context / sequences - low) / (high - low)
    if tokens:  # both together read the weights once
        prefill = interpolated(tokens, times["prefill_ms"])
        ms += max(0.0, prefill - (times["decode_ms"][0][1] if sequences else 0.0))
    return ms + interpolated(images, times["encoder_ms"])


def seconds(record: Mapping[str, Any], made: Plan, row: Row, at: int, cards: int = 1) -> float:
    """Return the predicted seconds for a document."""
    calls = [made.calls(row, document) for document in made.documents]
    return Simulation(record, at, cards).run(calls) / len(calls)


def eq_27(record: Mapping[str, Any], made: Plan, row: Row) -> float:
    """Return the seconds of a document's calls one after another, by Eq. 27: TTFT + output tokens * ms a token."""
    ms, tokens = 0.0, record["tokens"]
    for call in (call for document in made.documents for calls in made.calls(row, document) for call in calls):
        prompt, times = tokens["image"] + tokens["text"] + call.thinking_tokens, record["models"][call.side]
        ms += record["host_ms"]["call"] + record["host_ms"]["image"] + step_ms(record, times, 0, 0, prompt, 1)
        ms += call.output_tokens * step_ms(record, times, 1, prompt + call.output_tokens / 2, 0, 0)
    return ms / 1000 / len(made.documents)


def fastest(times: pd.DataFrame, rows: Sequence[Row]) -> list[list[str]]:
    """Return, for each row of times, the methods that think and are the fastest or within 5% of it, in their order."""
    titles = [row.title for row in rows if any(PROMPTS[row.prompt(ask.name)[1]].thinks for ask in row.method.asks)]
    return [list(one[one <= NEAR * one.min()].sort_values().index) for _, one in times[titles].iterrows()]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("times", nargs="+", type=Path, help="files of card.py or planned.py")
    options.add_argument("--at", nargs="+", type=int, default=[1, 32, 256], help="questions at a time")
    options.add_argument("--cards", nargs="+", type=int, default=[1, 2], help="1: both models share it; 2: one each")
    given = options_of(options)
    for file, cards in itertools.product(given.times, given.cards):
        record, found = json.loads(file.read_text()), {}
        if "cores" in record and cards != given.cards[0]:
            continue  # a machine without a card
        for at, on in itertools.product(given.at, given.benchmarks):
            made = plan(on, 40 if at == 1 else max(400, 6 * at), given)
            found[at, on] = {row.title: seconds(record, made, row, at, cards) for row in given.methods}
        name = f"{record['device']}, {record['image']}, {cards} card{'s' * (cards > 1)}"
        times = pd.DataFrame(found).T.rename_axis(["at a time", "benchmark"])
        first = times.columns[0]
        ratios = times.div(times[first], axis=0).drop(columns=first).reset_index()
        ratios.insert(2, f"{first}, s", times[first].to_numpy())
        print(f"\n{name}: time by that of {first}\n\n{ratios.to_markdown(index=False, floatfmt='.3f')}")
        used = [cards if len(row.method.sides) > 1 else 1 for row in given.methods]
        spent = (1000 * times * used).round().reset_index()
        print(f"\n{name}: GPU seconds for 1,000 questions\n\n{spent.to_markdown(index=False)}")
        said: dict[int, dict[str, list[str]]] = {}
        for (at, on), best in zip(found, fastest(times, given.methods), strict=True):
            said.setdefault(at, {}).setdefault(" or ".join(best), []).append(on)
        parts = []
        for at, of in said.items():
            parts.append(f"{at} at a time, " + ", ".join(f"{best} ({' '.join(on)})" for best, on in of.items()))
        print(f"\n{name}: of the methods that think, the fastest is, with " + "; with ".join(parts) + ".")
        print(json.dumps({"name": name, "s": {f"{on}, {at}": times for (at, on), times in found.items()}}))


if __name__ == "__main__":
    main()
