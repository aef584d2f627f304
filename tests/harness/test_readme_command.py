"""The command of the README: lmms-eval, two vLLM engines, real images."""

import json
from pathlib import Path

from support.command_line import lmms_eval, read_samples
from support.processes import Command
from support.servers import UNIPROC_EXECUTOR

from lmms_eval_mai.harness.tasks import TwoStageAnswerFilter

TASKS = ["pope_s", "chartqa_s", "mmmu_val_s", "mmbench_en_dev_s", "realworldqa_s"]


def test_the_readme_command_in_a_new_process_runs_the_pair_and_traces_every_sample(
    drawn_data: Path, tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    tasks = [*TASKS, "infovqa_val_s", "chartqa_r_s2"]
    line = arguments(tiny_pair, tasks, tmp_path / "out", limit=6)
    check(tmp_path / "out", tasks, limit=6, text=lmms_eval(drawn_data, *line))


def arguments(tiny_pair: tuple[Path, Path], tasks: list[str], output: Path, limit: int) -> list[str]:
    model_args = f"small={tiny_pair[0]},large={tiny_pair[1]},max_new_tokens=40"
    line = ["--model", "mai_cascade", "--model_args", model_args, "--tasks", ",".join(tasks), "--limit", str(limit)]
    return [*line, "--output_path", str(output), "--log_samples"]


def check(output: Path, tasks: list[str], limit: int, text: str) -> None:
    """Check the traces, lmms-eval's totals and the printed table of a run, and that harmless warnings are hidden."""
    # vLLM's CPU build says this before it reads how much it may log: once in each of its processes.
    assert text.count("Disabling Triton") <= 3 and "leaving Torch threads" not in text and "EngineCore pid" not in text
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


def test_lmms_evals_vllm_model_runs_the_two_rounds_of_an_s2_task(
    command: type[Command], drawn_data: Path, tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    # The engine runs in the command's own process: its other processes would import vLLM again.
    model_args = f"model={tiny_pair[0]},enforce_eager=True,kv_cache_memory_bytes={64 << 20},max_new_tokens=64"
    model_args += f",distributed_executor_backend={UNIPROC_EXECUTOR}"
    line = ["--model", "vllm", "--model_args", model_args, "--tasks", "pope_r_s2", "--limit", "2"]
    line += ["--gen_kwargs", "max_new_tokens=64"]  # lmms-eval's model uses the larger of the two limits
    line += ["--output_path", str(tmp_path), "--log_samples"]
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    _, text = command(drawn_data, tmp_path / "log", *line, environment=environment, engines=True).end()
    samples = read_samples(tmp_path, "pope_r_s2")
    assert len(samples) == 2, text[-3000:]
    for sample in samples:
        (rounds,) = sample["resps"]
        assert len(rounds) == 2 and rounds[0] != rounds[1]
        assert sample["filtered_resps"] == TwoStageAnswerFilter().apply([[rounds]], None)[0][0]
