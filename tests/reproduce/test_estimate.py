"""The estimated seconds in the plan of `lmms-eval-mai reproduce --profile`."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.profiles import TINY

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.profiles.profile import Profile
from lmms_eval_mai.reports import paper_profiles
from lmms_eval_mai.reports.call_times import Profiles
from lmms_eval_mai.reproduce import lengths, printing
from lmms_eval_mai.reproduce.estimate import Seconds, TimeEstimate
from lmms_eval_mai.reproduce.folder import OutputFolder
from lmms_eval_mai.reproduce.plan import Run, read_models, runs
from lmms_eval_mai.reproduce.subjects import Subject

POPE = Subject("pope", "pope", 9000, samples=False)
PAPER = Profiles(paper_profiles.profiles())
OWN = [dataclasses.replace(TINY, name=name, model=f"{name}.jsonl") for name in ("a", "b")]
SCRIPTED = {"engine": "scripted", "small": "a.jsonl", "large": "b.jsonl"}


def plan(chosen: Sequence[int], subject: Subject = POPE, **arguments: Any) -> dict[str, Run]:
    found = runs(read_models([], arguments or {"pair": "qwen3vl-2b-8b"}), [subject], chosen)
    return {f"{run.method.mode}/{run.task}": run for run in found}


def own(chosen: Sequence[int] = (10,)) -> dict[str, Run]:
    return plan(chosen, Subject("shapes", "shapes", 100, samples=False), **SCRIPTED)


def write_calls(folder: Path, calls: Sequence[tuple[str, str, str, int, int]]) -> Path:
    """Write a file of calls: run, side, stage, prompt tokens and output tokens."""
    lines = [json.dumps({"format": 1})]
    for run, side, stage, prompt_tokens, output_tokens in calls:
        call = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens, "cached_tokens": None}
        lines.append(json.dumps({"run": run, "key": [Path(run).name, 0, 0, side, stage], "call": call}))
    (folder / "calls.jsonl").write_text("\n".join([*lines, '{"torn']))
    return folder


def test_paper_models_take_the_lengths_of_table_5_and_the_times_of_tables_3_and_4() -> None:
    found = plan((10,))
    estimate = TimeEstimate(PAPER, lengths.Lengths())
    # 2B has 266.1 tokens with R on POPE. A prompt of 320 tokens: 28 ms, then 15.8 ms for each later token.
    seconds = estimate.of_run(found["small/pope_r"])
    assert seconds is not None and seconds.most == pytest.approx(9000 * (0.028 + 265.1 * 0.0158), rel=0.01)
    # Full RT shares this thinking; 8B answers with 586 tokens in its prompt and one token: no later token.
    seconds = estimate.of_run(found["transfer/pope_s"])
    assert seconds is not None and seconds.most == pytest.approx(9000 * 0.047, rel=0.05)
    assert estimate.of_run(found["cascade/pope_s"]) == Seconds()  # it shares all its calls


def test_calls_that_depend_on_answers_make_a_range() -> None:
    cascade = plan((15,))["cascade/pope_s"]
    seconds = TimeEstimate(PAPER, lengths.Lengths()).of_run(cascade)
    assert seconds is not None and 500 < seconds.least < 700 and 38_000 < seconds.most < 40_000
    assert str(seconds) == f"{seconds.least:,.0f} to {seconds.most:,.0f}"


def test_lengths_of_an_earlier_command_are_averages_over_its_documents(tmp_path: Path) -> None:
    found = own()
    thinking, other_pair = "models/small/shapes_r", "demo/small/shapes_r"
    write_calls(
        tmp_path,
        [
            (thinking, "small", "think", 50, 10),
            (thinking, "small", "think", 70, 31),
            (other_pair, "small", "think", 9, 9),
        ],
    )
    known = lengths.read(tmp_path, list(found.values()))
    (call,) = found["small/shapes_r"].calls.certain
    assert known.of(found["small/shapes_r"], call) == lengths.Length(60, 20.5)
    (short,) = found["small/shapes_s"].calls.certain
    assert known.of(found["small/shapes_s"], short) is None  # neither the file nor the paper has it
    seconds = TimeEstimate(Profiles([dataclasses.replace(one, batches=()) for one in OWN]), known)
    # The profile: 10 ms until the first token, then 10 ms for each token.
    assert seconds.of_run(found["small/shapes_r"]) == Seconds(*[pytest.approx(100 * (0.01 + 19.5 * 0.01))] * 2)


def test_profiles_with_batches_give_the_time_in_full_batches(tmp_path: Path) -> None:
    found = own()
    run = found["small/shapes_s"]
    known = lengths.read(write_calls(tmp_path, [(run.name, "small", "short", 64, 4)]), [run])
    estimate = TimeEstimate(Profiles(OWN), known)
    # 8 requests: 50 ms until the first token, and 300 ms for 15 later tokens.
    assert estimate.of_run(run) == Seconds(*[pytest.approx(100 * (0.05 + 3 * 0.3 / 15) / 8)] * 2)
    assert "in full batches of 8, if both engines share the device" in " ".join(estimate.sentences([run]))


def test_plan_has_the_estimate_its_assumption_and_a_sentence_for_what_has_none(tmp_path: Path) -> None:
    found = list(own().values())
    folder = OutputFolder(tmp_path / "out")
    known = lengths.read(write_calls(tmp_path, [("models/small/shapes_s", "small", "short", 64, 4)]), found)
    without = [dataclasses.replace(one, batches=()) for one in OWN]
    text = printing.plan(found, folder, TimeEstimate(Profiles(without), known))
    assert "Estimated s" in text and "models/small/shapes_s" in text
    assert "Estimated time of the calls to make in 2 of 5 runs: 4.0 s on A CPU (2 cores), one after another" in text
    assert f"Lengths of the calls: the averages in {tmp_path}. Calls that are not there have" in text
    assert "The lengths of the answers to shapes are not known, so some runs have no estimate." in text
    assert "Estimated" not in printing.plan(found, folder)


def test_models_without_a_profile_are_named(tmp_path: Path) -> None:
    profile: Profile = dataclasses.replace(OWN[0], batches=())
    found = own()
    (text, *_) = TimeEstimate(Profiles([profile]), lengths.Lengths()).sentences(list(found.values()))
    assert text.startswith("No profile is of b.jsonl: the profiles are of a.jsonl. So some runs have no estimate. Mea")


def test_folder_without_calls_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"has no calls .*Give the --output_path of an earlier"):
        lengths.read(tmp_path, [])
