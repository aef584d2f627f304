"""The command of the README: lmms-eval, two vLLM engines, real images."""

import json
from pathlib import Path

from support.command_line import lmms_eval, read_samples

TASKS = ["pope_s", "chartqa_s", "mmmu_val_s", "mmbench_en_dev_s", "realworldqa_s", "infovqa_val_s", "chartqa_r_s2"]
LIMIT = 6


def test_the_readme_command_in_a_new_process_runs_the_pair_and_traces_every_sample(
    drawn_data: Path, tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    model_args = f"small={tiny_pair[0]},large={tiny_pair[1]},max_new_tokens=40"
    line = ["--model", "mai_cascade", "--model_args", model_args, "--tasks", ",".join(TASKS), "--limit", str(LIMIT)]
    output = tmp_path / "out"
    text = lmms_eval(drawn_data, *line, "--output_path", str(output), "--log_samples")

    # vLLM's CPU build says this before it reads how much it may log: once in each of its processes.
    assert text.count("Disabling Triton") <= 3 and "leaving Torch threads" not in text and "EngineCore pid" not in text
    samples = {task: read_samples(output, task) for task in TASKS}
    for task, task_samples in samples.items():
        assert len(task_samples) == LIMIT, text[-3000:]
        for sample in task_samples:
            trace = sample["token_counts"][0]
            assert trace["exit"] in ("agree_short", "agree_think", "transfer")
            for call in trace["calls"]:
                for figure in ("prompt_tokens", "cached_tokens", "output_tokens", "queued_s", "ttft_s", "total_s"):
                    assert call[figure] is not None and call[figure] >= 0
                assert 0 < call["output_tokens"] <= 40
                # The answer is a part of the text; the models are random, so its text may have other tokens.
                assert isinstance(call["answer_tokens"], int)
            for call in trace["calls"][2:]:  # after the first call to each engine
                assert call["cached_tokens"] >= 32, (task, sample["doc_id"], call)

    (results,) = [json.loads(file.read_text()) for file in output.glob("*_results.json")]
    by_source = results["usage"]["by_source"]
    calls = [call for one in samples.values() for sample in one for call in sample["token_counts"][0]["calls"]]
    for side in ("small", "large"):
        assert by_source[side]["output_tokens"] == sum(c["output_tokens"] for c in calls if c["side"] == side) > 0
    assert results["throughput"]["total_gen_tokens"] == sum(call["output_tokens"] for call in calls)

    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "%)" in line]
    assert {row[0]: int(row[1]) for row in rows} == {task: len(one) for task, one in samples.items()}
    for row in rows:
        assert sum(int(cell.split()[0]) for cell in row if cell.endswith("%)")) == int(row[1])  # the exits
