"""The command of the README, as a user types it: lmms-eval in a child process, two real vLLM engines, real pictures."""

import json
from pathlib import Path

import pytest
from support.command_line import lmms_eval, read_samples

from lmms_eval_mai.harness.tasks import TwoStageAnswerFilter

TASKS = ["pope_s", "chartqa_s", "mmmu_val_s", "mmbench_en_dev_s", "realworldqa_s"]


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
    text = lmms_eval(folder, tasks, output, model_args, limit)

    samples = {task: read_samples(output, task) for task in tasks}
    for task, task_samples in samples.items():
        assert 0 < len(task_samples) <= limit, text[-3000:]
        for sample in task_samples:
            trace = sample["token_counts"][0]
            assert trace["exit"] in ("agree_short", "agree_think", "transfer")
            for call in trace["calls"]:
                for figure in ("prompt_tokens", "cached_tokens", "output_tokens", "queued_s", "ttft_s", "total_s"):
                    assert call[figure] is not None and call[figure] >= 0
                assert 0 < call["output_tokens"] <= 40
            for call in trace["calls"][2:]:  # the first call to each engine comes before
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
        assert sum(int(cell.split()[0]) for cell in row[2:5]) == int(row[1])


def test_lmms_evals_vllm_model_runs_the_two_rounds_of_an_s2_task(
    drawn_data: Path, tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    model_args = f"model={tiny_pair[0]},enforce_eager=True,kv_cache_memory_bytes={64 << 20},max_new_tokens=64"
    limit = ("--gen_kwargs", "max_new_tokens=64")  # that model takes the larger of the two
    text = lmms_eval(drawn_data, ["pope_r_s2"], tmp_path, model_args, 2, *limit, model="vllm")
    samples = read_samples(tmp_path, "pope_r_s2")
    assert len(samples) == 2, text[-3000:]
    for sample in samples:
        (rounds,) = sample["resps"]
        assert len(rounds) == 2 and rounds[0] != rounds[1]
        assert sample["filtered_resps"] == TwoStageAnswerFilter().apply([[rounds]], None)[0][0]
