"""The command on two vLLM engines of the demo pair, killed and stopped by Ctrl-C at random lines of the file of its
calls, beside a single run of MAI."""

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from support.compare import RUNS
from support.processes import DEMO_DOCUMENTS, Command, lines_of, strike

from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.method.methods import MAI, MAI_CONFIDENCE
from lmms_eval_mai.run.config import parse

CALLS = 4 * DEMO_DOCUMENTS
"""Both models with S, the small one with R, and the transfer. Own thinking makes more, where the large model thinks."""
RESULT = ("side", "prompt", "text", "parsed", "finish_reason", "prompt_tokens", "output_tokens", "answer_tokens")
"""What a call has in each run. Its times, its log-probabilities and the tokens in the cache depend on other calls."""
Seconds = dict[tuple[str, int, str, str, str], float]
"""Run, document, side, prompt and thinking of a call -> its seconds."""


def start(folder: Path) -> Command:
    # fp32: in bf16 a batch of other calls can change a rounding, and with it a greedy token.
    given = ("--pair", "demo", "--benchmarks", "shapes", "--tables", "10", "--model_args", "dtype=float32")
    more = ("--limit", str(DEMO_DOCUMENTS), "--output_path", str(folder / "out"))
    return Command(folder, folder / "log.txt", "compare", *given, *more, name="lmms-eval-mai")


def on_disk(file: Path) -> Seconds:
    """Return the calls in the file. A torn last line is left out."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return {
        (record["run"], record["key"][1], *record["key"][3:]): record["call"]["total_s"]
        for record in map(json.loads, lines)
        if "call" in record
    }


def samples(folder: Path) -> list[dict[str, Any]]:
    """Return the samples of a run."""
    (file,) = folder.rglob("*_samples_*.jsonl")
    return sorted(map(json.loads, file.read_text().splitlines()), key=lambda sample: sample["doc_id"])


def result(sample: dict[str, Any]) -> list[Any]:
    """Return what a sample has in each run."""
    trace = sample["token_counts"][0]
    calls = [[call[name] for name in RESULT] for call in trace["calls"]]
    return [sample["exact_match"], trace["exit"], trace["parsed"], calls]


@pytest.mark.long
def test_killed_command_has_the_results_of_an_undisturbed_run_and_makes_no_call_twice(
    demo_run: Any, tmp_path: Path
) -> None:
    file, chance, at_kill = tmp_path / "out" / "calls-0of1.jsonl", random.Random(), Seconds()
    for how in (signal.SIGKILL, signal.SIGINT):
        moment = len(lines_of(file.parent)) + chance.randrange(1, CALLS // 2)  # not before the process has begun
        command = start(tmp_path)
        assert strike(command.process, file.parent, moment, how, group=how is signal.SIGINT)
        at_kill = on_disk(file)
        assert command.end()[0] == (130 if how is signal.SIGINT else -how)  # and no engine is left
    code, log = start(tmp_path).end()
    assert code == 0, log

    names = (*(run.replace("pope", "shapes") for run in RUNS[:-1]), "own_thinking/shapes_s")
    found = {name: samples(tmp_path / "out" / name) for name in (f"demo/{name}" for name in names)}
    own = [sample["token_counts"][0]["exit"] for sample in found["demo/own_thinking/shapes_s"]]
    assert 0 < own.count("large_think") < DEMO_DOCUMENTS
    assert len(on_disk(file)) == CALLS + own.count("large_think")
    mai = found["demo/mai/shapes_s"]
    assert [result(sample) for sample in mai] == [result(sample) for sample in demo_run[1]]
    assert all(call["shared"] for sample in mai for call in sample["token_counts"][0]["calls"])
    runs = Runs.read([tmp_path / "out"])
    paper, confident = sorted(runs.select("cascade"), key=lambda run: run.setup.method != MAI)
    threshold = parse({"pair": "demo", "method": "mai_confidence"}).thresholds.of("shapes")
    # What the report shows of this threshold.
    computed = runs.replay(paper, MAI_CONFIDENCE, threshold)
    assert computed is not None and "confident" in set(computed.samples.exit)
    for column in ("exit", "output_tokens"):
        assert list(computed.samples[column]) == list(confident.samples[column])
    final = {
        (name, sample["doc_id"], call["side"], call["prompt"], call.get("of", "")): call["total_s"]
        for name, samples in found.items()
        for sample in samples
        for call in sample["token_counts"][0]["calls"]
        if not call.get("shared")
    }
    assert final.keys() == on_disk(file).keys()
    for call, seconds in at_kill.items():
        assert final[call] == pytest.approx(seconds, abs=1e-6)  # another duration: it was made again
