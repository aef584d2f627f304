"""What is transferred of a thinking that repeats itself, and what a run and a report say of those that a limit cut."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.folders import World
from support.pair import Answers
from support.samples import run_method, sample
from support.tables import report

from lmms_eval_mai.contract import Prompt, Repetition
from lmms_eval_mai.engines.scripted import Answer
from lmms_eval_mai.harness.totals import Totals, final_table
from lmms_eval_mai.method import prompts
from lmms_eval_mai.method.repeats import end_of_first_pattern
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.decoding import sampling
from lmms_eval_mai.run.outcomes import Failures

BEGIN, PATTERN = "I look at the dog:\n", "It may be a dog, or it may be a cat. "
LOOP = BEGIN + PATTERN * 6


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (LOOP, BEGIN + PATTERN),
        (LOOP.rstrip(), BEGIN + PATTERN),  # a thinking of a model's own has no space at its end
        (BEGIN + PATTERN * 40 + PATTERN[:9], BEGIN + PATTERN),
        (BEGIN + PATTERN * 4, None),
        (BEGIN + "|---" * 30 + "|", None),
        (LOOP + "So [[Yes]]", None),
    ],
)
def test_the_first_pattern_is_found_in_the_text(text: str, kept: str | None) -> None:
    end = end_of_first_pattern(text)
    assert (None if end is None else text[:end]) == kept


@pytest.mark.parametrize("think", ["R", "native"])
@pytest.mark.parametrize("reason", ["repetition", "length"])
def test_of_a_thinking_that_ended_by_repetition_its_first_pattern_is_the_last_that_is_transferred(
    reason: str, think: Any
) -> None:
    name, text = ("think", LOOP) if think == "R" else ("native", f"<think>{LOOP}")
    small, large = {name: Answer(text, finish_reason=reason)}, {"transfer": "[[Yes]]"}
    run = run_method("full_rt", sample(), small, large, think=think)
    kept = {"repetition": BEGIN + PATTERN, "length": LOOP if think == "R" else LOOP.strip()}[reason]
    assert run.large.prompt_of("transfer").endswith(prompts.transfer("previous_thinking", kept, "word"))
    thought = run.trace.calls[0]
    assert (thought.finish_reason, thought.thinking or thought.text) == (reason, LOOP if think == "R" else LOOP.strip())


def test_the_second_stage_reads_the_thinking_up_to_its_first_pattern() -> None:
    large = {"think": Answer(LOOP, finish_reason="repetition"), "stage2": "[[Yes]]"}
    run = run_method("large", sample(variant="R", two_stage=True), {}, large)
    assert run.large.prompt_of("stage2").endswith(prompts.stage2(BEGIN + PATTERN, "word"))


def test_only_calls_that_think_end_by_repetition() -> None:
    given = {"engine": "scripted", "small": "a.jsonl", "large": "b.jsonl"}
    off, on = (sampling({}, parse(given | more), is_mai_task=True) for more in ({}, {"stop_repeats": True}))
    thinks = {"explain", "think", "native"}
    assert {name for name, one in on.items() if one.repetition_detection == Repetition()} == thinks
    assert {name: one for name, one in on.items() if name not in thinks} == {n: off[n] for n in off.keys() - thinks}
    assert parse(given | {"stop_repeats": True}).settings.options == {"stop_repeats": True}
    assert parse(given).settings.options == {}


ENDS = {"loops": (LOOP, "length"), "is cut": (f"{LOOP} So", "length"), "ends": (f"{LOOP} [[no]]", "stop")}
ENDS["stopped"] = (LOOP, "repetition")


@dataclasses.dataclass(frozen=True)
class Thinks(Answers):
    """Answers whose thinking ends in one of these ways."""

    end: str = ""

    def to(self, prompt: Prompt) -> Answer:
        text, reason = ENDS[self.end]
        changes = {"text": text, "finish_reason": reason} if prompt.key.prompt == "think" else {}
        return dataclasses.replace(super().to(prompt), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("stopped", "loops", "cut"), [(0, 3, 0), (0, 3, 2), (0, 0, 2), (1, 1, 0), (0, 0, 0)])
def test_the_end_of_a_run_and_a_report_say_how_many_thinkings_were_stopped_or_cut_and_repeat_themselves(
    tmp_path: Path, stopped: int, loops: int, cut: int
) -> None:
    ends = [*["stopped"] * stopped, *["loops"] * loops, *["is cut"] * cut]
    ends += ["ends"] * (20 - len(ends))
    world = World("pope", [Thinks("yes", "no", "yes", "", "yes", end=end) for end in ends])
    traces = world.traces("mai")
    config = parse({"engine": "scripted", "small": "a.jsonl", "large": "b.jsonl"})
    ranks = [Totals.of(part, Failures(), False) for part in (traces[:7], traces[7:])]
    at_the_end = final_table(Totals.merged(ranks), config)
    world.write(tmp_path, "mai")
    for said in (at_the_end, " ".join(report([tmp_path], ()).gaps)):
        assert (f"cut off {loops + cut} of 20 thinkings ({(loops + cut) / 20:.1%})" in said) == bool(loops + cut)
        assert (f"stop_repeats ended {stopped} of 20" in said) == bool(stopped)
        assert (f"{loops} of them" in said) == bool(loops)
        assert ("stop_repeats=true" in said) == bool(loops and not stopped)
