"""The first check by confidence (`verify=confidence` and `verify=both`), with forced answers and probabilities."""

import asyncio
import math

import pytest
from support.samples import path, sample, scripted_pair

from lmms_eval_mai.contract import Prompt
from lmms_eval_mai.engines.scripted.engine import Answer
from lmms_eval_mai.paper.cascade import MODES
from lmms_eval_mai.paper.confidence import FirstCheck
from lmms_eval_mai.paper.sample import Trace

YES, NO = "[[Yes]]", "[[No]]"
SMALL = {"short": YES, "think": f"Step 1 ... {YES}"}


def ask(check: FirstCheck, short: str, probability: float | None, small: dict[str, str] = SMALL) -> Trace:
    """Run the cascade on one sample. `short`, `probability`: the large model's short answer."""

    def large(prompt: Prompt) -> Answer:
        if prompt.key.stage == "transfer":
            return Answer(YES)
        return Answer(short, answer_logprob=None if probability is None else math.log(probability))

    async def run() -> Trace:
        pair = await scripted_pair(lambda prompt: Answer(small[prompt.key.stage]), large, first_check=check)
        return await MODES["cascade"](sample(), pair)

    return asyncio.run(run())


def test_a_confident_short_answer_finishes_after_one_call() -> None:
    trace = ask(FirstCheck("confidence", 0.7), NO, 0.7)
    assert (trace.exit, trace.text, path(trace)) == ("confident", "No", ["large short"])
    assert (trace.verifications, trace.min_confidence) == ((), 0.7)


@pytest.mark.parametrize("probability", [0.69, None])
def test_an_answer_that_is_not_confident_is_verified_after_the_thinking(probability: float | None) -> None:
    trace = ask(FirstCheck("confidence", 0.7), YES, probability)
    assert (trace.exit, path(trace)) == ("agree_think", ["large short", "small think"])
    trace = ask(FirstCheck("confidence", 0.7), NO, probability)
    assert (trace.exit, path(trace)) == ("transfer", ["large short", "small think", "large transfer"])


def test_an_answer_that_the_scorer_cannot_read_is_not_confident() -> None:
    assert ask(FirstCheck("confidence", 0.7), "[[]]", 1.0).exit == "transfer"


@pytest.mark.parametrize(
    ("short", "probability", "exit"), [(YES, 0.7, "agree_short"), (YES, 0.69, "agree_think"), (NO, 1.0, "transfer")]
)
def test_both_needs_agreement_and_confidence(short: str, probability: float, exit: str) -> None:
    trace = ask(FirstCheck("both", 0.7), short, probability)
    assert trace.exit == exit
    assert path(trace)[:2] == ["small short", "large short"]
    assert len(trace.verifications) == (1 if exit == "agree_short" else 2)


def test_a_benchmark_may_have_a_threshold_of_its_own() -> None:
    check = FirstCheck("confidence", 0.9, {"pope": 0.5})
    assert ask(check, NO, 0.6).exit == "confident"
    assert check.threshold("chartqa") == 0.9


def test_the_papers_rule_does_not_read_the_probability() -> None:
    trace = ask(FirstCheck(), YES, 0.01)
    assert (trace.exit, trace.min_confidence) == ("agree_short", None)
