"""The command of the README: lmms-eval, two vLLM engines, real images."""

import json
from pathlib import Path

from support.processes import Command

TASKS = ["pope_s", "chartqa_s", "mmmu_val_s", "mmbench_en_dev_s", "realworldqa_s", "infovqa_val_s", "chartqa_r_s2"]
LIMIT = 6


def test_the_readme_command_runs_the_pair_and_traces_every_sample(
    command: type[Command], drawn_data: Path, tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    model_args = f"small={tiny_pair[0]},large={tiny_pair[1]},max_new_tokens=40"
    line = ["--model", "mai_cascade", "--model_args", model_args, "--tasks", ",".join(TASKS), "--limit", str(LIMIT)]
    output = tmp_path / "out"
    code, text = command(drawn_data, tmp_path / "log", *line, "--output_path", str(output), "--log_samples").end()
    assert code == 0, text[-3000:]
    calls = []
    for task in TASKS:
        (file,) = output.rglob(f"*_samples_{task}.jsonl")
        samples = [json.loads(line) for line in file.read_text().split("\n") if line]
        traces = [sample["token_counts"][0] for sample in samples]
        assert len(traces) == LIMIT and all(len(trace["calls"]) >= 2 for trace in traces)
        for trace in traces:
            assert trace["exit"] in ("agree_short", "agree_think", "transfer")
            # After the first call to each engine, the image is in its cache.
            assert all(call["cached_tokens"] >= 32 for call in trace["calls"][2:])
            calls += trace["calls"]
    for call in calls:
        assert all(call[name] >= 0 for name in ("prompt_tokens", "cached_tokens", "queued_s", "ttft_s", "total_s"))
        assert 0 < call["output_tokens"] <= 40 and isinstance(call["answer_tokens"], int)
    (results,) = [json.loads(file.read_text()) for file in output.glob("mai_cascade-*/*_results.json")]
    assert results["throughput"]["total_gen_tokens"] == sum(call["output_tokens"] for call in calls)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "%)" in line]
    assert {row[0]: int(row[1]) for row in rows} == dict.fromkeys(TASKS, LIMIT)
