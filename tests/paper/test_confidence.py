"""The first check by confidence (`verify=confidence` and `verify=both`), with forced answers and probabilities."""

import asyncio
import math
from typing import Any

import pytest
from support.samples import path, sample, scripted_pair

from lmms_eval_mai.contract import Prompt
from lmms_eval_mai.engines.scripted.engine import Answer
from lmms_eval_mai.paper.cascade import MODES
from lmms_eval_mai.paper.confidence import FirstCheck
from lmms_eval_mai.paper.sample import Trace

YES, NO = "[[Yes]]", "[[No]]"
SMALL = {"short": YES, "think": f"Step 1 ... {YES}"}


def ask(check: FirstCheck, short: str, probability: float | None, two_stage: bool = False, **choices: Any) -> Trace:
    """Run the cascade on one sample. `short`, `probability`: the large model's short answer. `choices`: of the pair."""

    def large(prompt: Prompt) -> Answer:
        if prompt.key.stage != "short":
            return Answer(YES if prompt.key.stage == "transfer" else "Hm. [[Maybe]]")
        return Answer(short, answer_logprob=None if probability is None else math.log(probability))

    async def run() -> Trace:
        pair = await scripted_pair(lambda asked: Answer(SMALL[asked.key.stage]), large, first_check=check, **choices)
        return await MODES["cascade"](sample(variant="R", two_stage=two_stage), pair)

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


@pytest.mark.parametrize(("two_stage", "calls"), [(False, ["large think"]), (True, ["large think", "large stage2"])])
@pytest.mark.parametrize("check", [FirstCheck(), FirstCheck("confidence", 0.7)])
def test_the_large_model_thinks_for_itself_after_a_failed_first_check(
    check: FirstCheck, two_stage: bool, calls: list[str]
) -> None:
    trace = ask(check, NO, 0.5, thinker="large", two_stage=two_stage)
    first = ["small short"] * (check.verify == "agreement")
    assert (trace.exit, path(trace)) == ("large_think", [*first, "large short", *calls])
    assert trace.text == "Maybe" and len(trace.verifications) == len(first)
    assert ask(check, YES, 0.8, thinker="large").exit in ("agree_short", "confident")


def test_without_the_second_check_the_thinking_is_always_transferred() -> None:
    trace = ask(FirstCheck("confidence", 0.7), YES, 0.5, second_check=False)
    assert (trace.exit, path(trace)) == ("transfer", ["large short", "small think", "large transfer"])
    assert (trace.verifications, trace.thought) == ((), "yes")
    assert ask(FirstCheck("confidence", 0.7), YES, 0.7, second_check=False).exit == "confident"
