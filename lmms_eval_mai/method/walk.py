"""The walk of one sample through the steps of a method. It makes no call: a run makes them on its engines (`run.py`), a
replay finds them among finished calls (`analysis/runs/replay.py`), and `ask --dry-run` makes them up.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from lmms_eval_mai.contract import PROMPTS, CallPrompt, Side, Variant
from lmms_eval_mai.method.agreement import AgreementRules, Benchmark, verify
from lmms_eval_mai.method.methods import DEFAULT_CONFIDENCE, Ask, Method, Stop, asks_of, prompt_of


class Answer(Protocol):
    """What a stop looks at: a `Call`, or a call of a finished run."""

    @property
    def parsed(self) -> str | None:
        """The answer as the scorer reads it. None: it cannot read it."""

    @property
    def answer_logprob(self) -> float | None:
        """The log-probability that the model gave to it. None: not known."""


@dataclass(frozen=True)
class Verifier:
    """Decides whether a sample is done at a stop."""

    benchmark: Benchmark
    rules: AgreementRules = AgreementRules()  # noqa: RUF009 - frozen
    threshold: float = DEFAULT_CONFIDENCE
    """Of stops with `sure` and without a threshold of their own."""

    def holds(self, stop: Stop, answers: Mapping[str, Answer]) -> bool:
        """Return whether two answers agree (Section 4.1), and whether a model is sure of an answer that parses, if the
        stop asks for it. `answers`: by the name of their `Ask`. A model whose engine reports no probability is never
        sure."""
        if stop.agree:
            first, second = (answers[name].parsed for name in stop.agree)
            if not verify(self.benchmark, first, second, self.rules):
                return False
        if not stop.sure:
            return True
        answer, least = answers[stop.sure], self.threshold if stop.min_confidence is None else stop.min_confidence
        # `calibrate` compares logarithms too, so its threshold decides each question as it did there.
        known = answer.parsed is not None and answer.answer_logprob is not None
        return known and answer.answer_logprob >= math.log(least)  # type: ignore[operator]


def walk(method: Method, verifier: Verifier, answers: Mapping[str, Answer]) -> Iterator[tuple[Ask, ...] | Stop]:
    """Yield the calls of each step, which are made at the same time, and at the end the stop at which the sample is
    done. The caller adds the answer of each `Ask` to `answers`, by its name, before it takes the next step."""
    for step in method.steps:
        if not isinstance(step, Stop):
            yield asks_of(step)
        elif verifier.holds(step, answers):
            yield step
            return
    raise AssertionError(f"{method.name} does not end with a stop that has no condition")


@dataclass(frozen=True, slots=True)
class CallName:
    """One call of a sample."""

    side: Side
    prompt: CallPrompt
    of: str = ""
    """The call whose thinking is in the prompt, such as `small.think`. Empty: none is."""

    def __str__(self) -> str:
        return f"{self.side}.{self.prompt}" + (f"({self.of})" if self.of else "")


@dataclass(frozen=True, slots=True)
class AskCalls:
    """The calls of an `Ask` in a task."""

    thinking: CallName
    answer: CallName
    """The same call, except with two stages."""
    score: CallName | None = None
    """The call before a sparse transfer that weighs the thinking (Eq. 12)."""
    source: CallName | None = None
    """The call whose thinking is transferred. None: no transfer."""


def calls_of(ask: Ask, method: Method, variant: Variant | None, two_stage: bool, think: Variant) -> AskCalls:
    """Return the calls of an `Ask` in a task, whose prompts are those of `prompt_of`.

    In the one-stage form the thinking and the answer are the same call: "adopting R_think^s in lieu of A_think^s" (end
    of Section 4.2). In the two-stage form (S2, Appendix B.3) a second call gives the answer, if the method uses it. A
    model that thinks by itself answers after its thinking, so it has one stage in all tasks.
    """
    prompt = prompt_of(ask, variant, think)
    if prompt == "transfer":
        side, _, thinks = ask.of.partition(".")
        source = CallName(side, prompt_of(Ask(side, thinks), variant, think))  # type: ignore[arg-type]
        transfer = CallName(ask.side, prompt, str(source))
        return AskCalls(transfer, transfer, CallName("large", "score", str(source)), source)
    thinking = CallName(ask.side, prompt)
    if PROMPTS[prompt].two_stages and two_stage and method.is_answer_used(ask):
        return AskCalls(thinking, CallName(ask.side, "stage2", str(thinking)))
    return AskCalls(thinking, thinking)
