"""The runs of Table 10 on POPE, and the files of finished runs without their times."""

import json
from pathlib import Path
from typing import Any

RUNS = ("small/pope_s", "small/pope_r", "large/pope_s", "full_rt/pope_s", "mai/pope_s", "think_first/pope_s")
"""The runs of Table 10 and of the method below, in their order."""
THINK_FIRST = """
- ask: [large.simple, small.think]
- stop: {exit: agree_think, answer: large.simple, agree: [small.think, large.simple]}
- {ask: large.transfer, of: small.think}
- stop: {exit: transfer, answer: large.transfer}
"""
"""The file of a method of the user, whose calls are those of Table 10."""
TIMES = ("queued_s", "ttft_s", "total_s", "started_at")


def arguments(scripts: dict[str, str], output: Path, *more: str) -> list[str]:
    """Return the arguments of the command that makes these runs."""
    method = Path(scripts["small"]).with_name("think_first.yaml")
    if not method.exists():  # a run is made again after a change of its method
        method.write_text(THINK_FIRST)
    model_args = ",".join(f"{name}={value}" for name, value in scripts.items())
    chosen = ["--benchmarks", "pope", "--tables", "10", "--model_args", model_args, "--methods", str(method)]
    return ["compare", *chosen, "--output_path", str(output), *more]


def finished_run(folder: Path) -> dict[str, Any]:
    """Return the scores of a run, and its samples without their times."""
    (results,) = folder.rglob("*_results.json")
    (samples,) = folder.rglob("*_samples_*.jsonl")
    found = json.loads(results.read_text())
    lines = [json.loads(line) for line in samples.read_text().split("\n") if line]
    kept = ("doc_id", "target", "resps", "filtered_resps", "pope_accuracy", "token_counts", "doc_hash")
    return {
        "model": (found["config"]["model"], found["model_source"], found["config"]["model_args"]),
        "scores": found["results"],
        "samples": [without_times({name: line[name] for name in kept if name in line}) for line in lines],
    }


def without_times(sample: dict[str, Any]) -> dict[str, Any]:
    """Remove the times of all calls of a sample."""
    for call in sample["token_counts"][0]["calls"]:
        for name in TIMES:
            call.pop(name, None)  # a shared call has none
    return sample


def without_marks(run: dict[str, Any]) -> dict[str, Any]:
    """Remove the marks of shared calls, which differ if other runs were made before."""
    for sample in run["samples"]:
        for call in sample["token_counts"][0]["calls"]:
            call.pop("shared", None)
    return run


def shared_calls(run: dict[str, Any]) -> tuple[int, int]:
    """Return the number of shared calls of a run, and of all its calls."""
    calls = [call for sample in run["samples"] for call in sample["token_counts"][0]["calls"]]
    return sum(call.get("shared", False) for call in calls), len(calls)
