"""The command of the README, as a user types it: lmms-eval in a child process, two real vLLM engines, real pictures."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

TASKS = ["pope_s", "chartqa_s", "mmmu_val_s", "mmbench_en_dev_s", "realworldqa_s"]


def lmms_eval(folder: Path, tasks: list[str], output: Path, model_args: str, *more: str) -> str:
    """Run it in `folder` to the end; -> all it printed. No process of its own is left behind."""
    command = [str(Path(sys.executable).parent / "lmms-eval"), "--model", "mai_cascade", "--model_args", model_args]
    command += ["--tasks", ",".join(tasks), "--output_path", str(output), "--log_samples", *more]
    done = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "MAI_TEST": str(output)},
    )
    text = done.communicate()[0].decode(errors="replace")
    left = [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("MAI_TEST") == str(output)]
    assert left == []
    return text


def read_samples(output: Path, task: str) -> list[dict[str, Any]]:
    (file,) = output.rglob(f"*_samples_{task}.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("source", ["drawn", "real"])
def test_the_whole_pair_runs_on_real_engines_with_a_trace_of_every_sample(
    source: str, request: pytest.FixtureRequest, tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    if source == "drawn":
        folder, tasks, limit = request.getfixturevalue("drawn_data"), [*TASKS, "infovqa_val_s", "chartqa_r_s2"], 6
    else:
        folder, tasks, limit = request.getfixturevalue("shared") / "data" / "real", TASKS, 12
    output = tmp_path / "out"
    model_args = f"small={tiny_pair[0]},large={tiny_pair[1]},max_new_tokens=40"
    text = lmms_eval(folder, tasks, output, model_args, "--limit", str(limit))

    for task in tasks:
        samples = read_samples(output, task)
        assert len(samples) == limit, text[-3000:]
        exits = [sample["token_counts"][0]["exit"] for sample in samples]
        assert set(exits) <= {"agree_short", "agree_think", "transfer"}
        for sample in samples:
            calls = sample["token_counts"][0]["calls"]
            for call in calls:
                for figure in ("prompt_tokens", "cached_tokens", "output_tokens", "queued_s", "ttft_s", "total_s"):
                    assert call[figure] is not None and call[figure] >= 0
                assert 0 < call["output_tokens"] <= 40
            for call in calls[2:]:
                assert call["cached_tokens"] >= 32, (task, sample["doc_id"], call)

    (results,) = [json.loads(file.read_text()) for file in output.rglob("*_results.json")]
    by_source = results["usage"]["by_source"]
    assert by_source["small"]["output_tokens"] > 0 and by_source["large"]["output_tokens"] > 0
    assert results["throughput"]["total_gen_tokens"] == sum(one["output_tokens"] for one in by_source.values())
    rows = [line for line in text.splitlines() if line.startswith("|") and "%)" in line]
    assert {row.split("|")[1].strip() for row in rows} == set(tasks)
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert sum(int(cell.split()[0]) for cell in cells[2:5]) == int(cells[1]) == limit
