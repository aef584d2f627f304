"""The first check by confidence (`verify=confidence` and `verify=both`), with forced answers and probabilities."""

import asyncio
import json
import math
from pathlib import Path

import pytest
from support.samples import sample, scripted_pair

from lmms_eval_mai import Cascade
from lmms_eval_mai.contract import Prompt
from lmms_eval_mai.engines.scripted.engine import Answer
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.cascade import MODES
from lmms_eval_mai.paper.confidence import FirstCheck
from lmms_eval_mai.paper.sample import Trace
from lmms_eval_mai.run.calibration import Calibration

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


def stages(trace: Trace) -> list[str]:
    return [f"{call.key.side} {call.key.stage}" for call in trace.calls]


def test_a_confident_short_answer_finishes_after_one_call() -> None:
    trace = ask(FirstCheck("confidence", 0.7), NO, 0.7)
    assert (trace.exit, trace.text, stages(trace)) == ("confident", "No", ["large short"])
    assert (trace.verifications, trace.min_confidence) == ((), 0.7)


@pytest.mark.parametrize("probability", [0.69, None])
def test_an_answer_that_is_not_confident_is_verified_after_the_thinking(probability: float | None) -> None:
    trace = ask(FirstCheck("confidence", 0.7), YES, probability)
    assert (trace.exit, stages(trace)) == ("agree_think", ["large short", "small think"])
    trace = ask(FirstCheck("confidence", 0.7), NO, probability)
    assert (trace.exit, stages(trace)) == ("transfer", ["large short", "small think", "large transfer"])


def test_an_answer_that_the_scorer_cannot_read_is_not_confident() -> None:
    assert ask(FirstCheck("confidence", 0.7), "[[]]", 1.0).exit == "transfer"


@pytest.mark.parametrize(
    ("short", "probability", "exit"), [(YES, 0.7, "agree_short"), (YES, 0.69, "agree_think"), (NO, 1.0, "transfer")]
)
def test_both_needs_agreement_and_confidence(short: str, probability: float, exit: str) -> None:
    trace = ask(FirstCheck("both", 0.7), short, probability)
    assert trace.exit == exit
    assert stages(trace)[:2] == ["small short", "large short"]
    assert len(trace.verifications) == (1 if exit == "agree_short" else 2)


def test_a_benchmark_may_have_a_threshold_of_its_own() -> None:
    check = FirstCheck("confidence", 0.9, {"pope": 0.5})
    assert ask(check, NO, 0.6).exit == "confident"
    assert check.threshold("chartqa") == 0.9


def test_the_papers_rule_does_not_read_the_probability() -> None:
    trace = ask(FirstCheck(), YES, 0.01)
    assert (trace.exit, trace.min_confidence) == ("agree_short", None)


def scripts(folder: Path, **fields: float) -> dict[str, str]:
    """Write a script for the first question of a `Cascade`. `fields`: those of the large model's answers."""
    files = {}
    for side, texts in (("small", SMALL), ("large", {"short": NO, "transfer": YES})):
        file = folder / f"{side}.jsonl"
        more = fields if side == "large" else {}
        lines = ({"task": "ask", "doc_id": 0, "stage": stage, "text": text, **more} for stage, text in texts.items())
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        files[side] = str(file)
    return {"engine": "scripted", **files}


@pytest.mark.parametrize("verify", ["confidence", "both"])
def test_a_run_whose_engine_reports_no_probability_is_refused_after_its_first_sample(
    tmp_path: Path, verify: str
) -> None:
    refused = pytest.raises(ArgumentError, match="large_engine=scripted did not report it for ask document 0")
    with Cascade(**scripts(tmp_path), verify=verify) as mai, refused:
        mai.ask_blocking(None, "Is there a dog?")


def test_the_user_is_told_if_a_threshold_was_chosen_for_other_models_or_questions(
    tmp_path: Path, warnings: list[str]
) -> None:
    file = tmp_path / "file.json"
    for large in ("large.jsonl", "other.jsonl"):
        Calibration("confidence", 0.9, {}, "", "x/small.jsonl", f"x/{large}", {"pope": 1}, ()).write(file)
        given = scripts(tmp_path, answer_logprob=-0.1)
        with Cascade(**given, verify="confidence", min_confidence=str(file)) as mai:
            assert mai.ask_blocking(None, "Is there a dog?").exit == "confident"
    kinds, models, _ = "".join(warnings).split("mai_cascade: ")[1:]
    assert "documents of pope, so it promises nothing for other questions (any)" in kinds
    assert "was chosen with x/small.jsonl and x/other.jsonl, so it promises nothing for" in models
