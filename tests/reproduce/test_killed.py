"""The command on two vLLM engines of the demo pair, killed at random lines of the file of its calls."""

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from support.processes import Command
from support.reproduce import RUNS

DOCUMENTS = 60
KILLS = 2
RESULT = ("side", "stage", "text", "finish_reason", "prompt_tokens", "output_tokens", "answer_tokens", "shared")
"""What a call has in each run. Its times, its log-probabilities and the tokens in the cache depend on other calls."""


def start(folder: Path) -> Command:
    folder.mkdir(exist_ok=True)
    # fp32: in bf16 a batch of other calls can change a rounding, and with it a greedy token.
    given = ("--pair", "demo", "--benchmarks", "shapes", "--tables", "10", "--model_args", "dtype=float32")
    more = ("--limit", str(DOCUMENTS), "--output_path", str(folder / "out"))
    return Command(folder, folder / "log.txt", "reproduce", *given, *more, name="lmms-eval-mai", engines=True)


def samples(folder: Path) -> dict[tuple[str, int], Any]:
    """Return the samples of all runs, by run and document."""
    found = {}
    for name in (run.replace("pope", "shapes") for run in RUNS):
        (file,) = (folder / "out" / "demo" / name).rglob("*_samples_*.jsonl")
        found |= {(name, one["doc_id"]): one for one in map(json.loads, file.read_text().splitlines())}
    return found


def result(sample: dict[str, Any]) -> list[Any]:
    """Return what a sample has in each run."""
    trace = sample["token_counts"][0]
    calls = [[call.get(name) for name in RESULT] for call in trace["calls"]]
    return [sample["filtered_resps"], sample["score"], trace["exit"], trace["answers"], calls]


def call_seconds(calls: Path) -> dict[tuple[str, int, str, str], float]:
    """Return the seconds of the calls on the disk, by run, document, side and stage. A torn last line is left out."""
    lines = calls.read_text().split("\n")[:-1] if calls.exists() else []
    return {
        (record["run"].removeprefix("demo/"), record["key"][1], *record["key"][3:]): record["call"]["total_s"]
        for record in map(json.loads, lines)
    }


@pytest.mark.slow
def test_killed_command_has_the_results_of_an_undisturbed_one_and_makes_no_call_twice(tmp_path: Path) -> None:
    code, log = start(tmp_path / "undisturbed").end()
    assert code == 0, log
    expected = samples(tmp_path / "undisturbed")
    made = call_seconds(tmp_path / "undisturbed" / "out" / "calls.jsonl")
    assert len(expected) == len(RUNS) * DOCUMENTS and len(made) == 4 * DOCUMENTS
    assert f"{len(made)} were made here" in log

    folder, chance = tmp_path / "killed", random.Random()
    calls = folder / "out" / "calls.jsonl"
    on_disk: dict[tuple[str, int, str, str], float] = {}
    for moment in sorted(chance.sample(range(1, len(made)), KILLS)):
        process = start(folder).process
        while process.is_alive() and len(call_seconds(calls)) < moment:
            time.sleep(0.01)
        assert process.is_alive() and process.pid
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        on_disk = call_seconds(calls)
    code, log = start(folder).end()
    assert code == 0, log
    found = samples(folder)
    different = [name for name in expected if result(found[name]) != result(expected[name])]
    assert different == [] and found.keys() == expected.keys()
    assert call_seconds(calls).keys() == made.keys()
    for (run, document, side, stage), seconds in on_disk.items():
        own = [call for call in found[run, document]["token_counts"][0]["calls"] if not call.get("shared")]
        (call,) = (call for call in own if (call["side"], call["stage"]) == (side, stage))
        assert call["total_s"] == pytest.approx(seconds, abs=1e-6)  # another duration: it was made again
