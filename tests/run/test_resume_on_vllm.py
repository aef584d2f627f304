"""A run of the demo pair on two vLLM engines that fails twice: a killed engine core, and SIGKILL."""

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.processes import DEMO_DOCUMENTS, Process, evaluate, lines_of, start, strike, wait_for_lines


@pytest.mark.slow
def test_run_on_vllm_that_is_killed_has_the_results_of_an_undisturbed_run(demo_run: Any, tmp_path: Path) -> None:
    """It is resumed in this process."""
    rng = random.Random()
    # fp32: in bf16 a batch of other calls can change a rounding, and with it a greedy token.
    arguments: dict[str, Any] = {"pair": "demo", "dtype": "float32", "max_open_samples": 16}
    store = tmp_path / "store"
    output, kept = tmp_path / "found.json", tmp_path / "kept.jsonl"
    assert len(Counter(demo_run[0]["exits"])) == 3

    process = start(tmp_path, output, "shapes_s", DEMO_DOCUMENTS, store=store, **arguments)
    engines = _engines(process, store)
    assert len(engines) == 2
    kept.hardlink_to(next(store.glob("*.jsonl")))  # the next run of this process removes the file
    os.kill(rng.choice(engines).pid, signal.SIGKILL)
    _wait_for(process, output.with_suffix(".log"), "engine (engine_restarts: 1 of 2 left) after this error: ")
    # At most 16 calls, one a sample on its way, can end without the engine that crashed.
    assert wait_for_lines(process, store, len(lines_of(store)) + rng.randint(20, 66))
    engines = _engines(process, store)
    assert strike(process, store, after=0)
    _, left = psutil.wait_procs(engines, timeout=60)
    assert not left  # engines end by themselves when their parent process is killed

    arguments |= {"max_num_seqs": 24}  # it does not change an answer, so the run is resumed
    found, samples = evaluate(output, "shapes_s", DEMO_DOCUMENTS, {"store": store, **arguments})
    for name in ("scores", "exits", "answers", "usage"):
        assert found[name] == demo_run[0][name]
    assert [_calls(sample) for sample in samples] == [_calls(sample) for sample in demo_run[1]]
    keys = Counter(tuple(json.loads(line)["key"]) for line in kept.read_text().split("\n") if '"call":' in line)
    assert set(keys.values()) == {1}


def _calls(sample: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return what the calls of a sample must have in each run."""
    names = ("side", "prompt", "text", "finish_reason", "prompt_tokens", "output_tokens", "answer_tokens")
    return [tuple(call[name] for name in names) for call in sample["token_counts"][0]["calls"]]


def _wait_for(process: Process, log: Path, words: str) -> None:
    deadline = time.monotonic() + 300
    while words not in log.read_text(errors="replace"):
        assert process.poll() is None and time.monotonic() < deadline, f"the log does not say: {words}"
        time.sleep(0.05)


def _engines(process: Process, store: Path) -> list[psutil.Process]:
    """Return the engine processes of a run that has begun to answer, without the server that forks them."""
    assert wait_for_lines(process, store, 2)
    found = []
    for below in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if not below.children() and "resource_tracker" not in " ".join(below.cmdline()):
                found.append(below)
    return found
