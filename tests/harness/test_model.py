"""The model inside lmms-eval: whole evaluations in this process, with scripted answers."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.logs import logged
from support.pope_scripts import Record, counts, exit_of, gold_of, pope_scripts, record
from support.processes import Command
from support.servers import free_port
from support.tasks import Loaded

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.harness.model import MaiCascade
from lmms_eval_mai.plugin import task_dir


def test_a_run_has_lmms_evals_score_and_the_trace_of_every_sample(
    evaluate: Any, write_script: Any, capsys: Any
) -> None:
    scripts = pope_scripts(write_script, "pope_s")
    results = evaluate(["pope_s"], **scripts, transfer_answer="keep", log_prompts=True)
    assert results["results"]["pope_s"]["pope_accuracy,none"] == 1.0

    traces = counts(results, "pope_s")
    *_, thinking, transferred = traces[2]["calls"]
    assert thinking["text"].startswith("Thinking. [[")
    assert f"According to previous thinking: {thinking['text']}\n" in str(transferred["prompt"][-1]["content"][-1])
    assert [trace["exit"] for trace in traces] == [exit_of(i) for i in range(12)]
    calls = [call for trace in traces for call in trace["calls"]]
    assert len(calls) == 4 * 2 + 4 * 3 + 4 * 4
    assert all(isinstance(call[f"{kind}_tokens"], int) for call in calls for kind in ("prompt", "cached", "output"))
    assert [answer["agree"] for answer in traces[1]["answers"]] == [False, True]
    for trace in traces:
        assert trace["readable"]
        assert trace["output_tokens"] == sum(call["output_tokens"] for call in trace["calls"])
        assert trace["input_tokens"] == sum(call["prompt_tokens"] for call in trace["calls"])

    usage = results["usage"]["by_source"]
    assert usage["small"]["n_api_calls"] == 12 + 8
    assert usage["small"]["output_tokens"] == 12 * 5 + 8 * 50
    assert usage["large"]["n_api_calls"] == 12 + 4

    printed = capsys.readouterr()
    row = next(line for line in printed.out.splitlines() if "pope_s" in line)
    assert [cell.strip() for cell in row.strip("|").split("|")][:6] == [
        "pope_s", "12", "4 (33.33%)", "4 (33.33%)", "4 (33.33%)", "20"
    ]  # fmt: skip
    assert "agree_short=4" in printed.err and "12/12" in printed.err


def test_a_two_stage_task_verifies_the_second_stage_and_is_scored_on_the_final_answer(
    evaluate: Any, write_script: Any
) -> None:
    results = evaluate(["pope_r_s2"], **pope_scripts(write_script, "pope_r_s2"))
    assert results["results"]["pope_r_s2"]["pope_accuracy,none"] == 1.0
    traces = counts(results, "pope_r_s2")
    assert [trace["exit"] for trace in traces] == [exit_of(i) for i in range(12)]
    assert [call["stage"] for call in traces[1]["calls"][2:]] == ["think", "stage2"]
    # The rounds of a sample are all its texts, the answer last.
    rounds = next(one for one in results["samples"]["pope_r_s2"] if one["doc_id"] == 1)["resps"][0][0]
    assert len(rounds) == 4 and rounds[-1] == traces[1]["calls"][1]["text"]


@pytest.mark.parametrize(
    ("mode", "accuracy", "stages"),
    [
        ("small", 4 / 12, {"pope_s": ["short"], "pope_r": ["think"], "pope_r_s2": ["think", "stage2"]}),
        ("large", 8 / 12, {"pope_s": ["short"]}),
        ("transfer", 1.0, {"pope_s": ["think", "transfer"]}),
    ],
)
def test_the_baselines_run_through_the_same_engines_meter_and_scorer(
    evaluate: Any, write_script: Any, mode: str, accuracy: float, stages: dict[str, list[str]]
) -> None:
    results = evaluate([*stages], **pope_scripts(write_script, *stages), mode=mode)
    for task, expected in stages.items():
        assert results["results"][task]["pope_accuracy,none"] == pytest.approx(accuracy)
        assert [[call["stage"] for call in trace["calls"]] for trace in counts(results, task)] == [expected] * 12
    assert set(results["usage"]["by_source"]) == ({"small", "large"} if mode == "transfer" else {mode})


def test_our_task_and_another_lmms_eval_task_run_together_and_are_counted_separately(
    evaluate: Any, write_script: Any, capsys: Any
) -> None:
    options = ["red", "green", "blue", "orange"]
    records: dict[str, list[Record]] = {"small": [], "large": []}
    for doc_id, gold in enumerate(gold_of("POPE", "test")):
        for side in records:
            records[side].append(record("pope", doc_id, "short", gold.title()))
    for doc_id, gold in enumerate(gold_of("MMMU", "validation")):
        other = "D" if gold != "D" else "A"
        records["small"] += [
            record("mmmu_val_s", doc_id, "short", f"[[{other}]]"),
            record("mmmu_val_s", doc_id, "think", f"Of {options} ... [[{gold}]]"),
        ]
        records["large"].append(record("mmmu_val_s", doc_id, "short", f"[[{gold}]]"))
    scripts = {side: str(write_script(side, rows)) for side, rows in records.items()}
    results = evaluate(["pope", "mmmu_val_s"], engine="scripted", **scripts)
    assert results["results"]["pope"]["pope_accuracy,none"] == 1.0
    assert results["results"]["mmmu_val_s"]["mmmu_acc,none"] == 1.0
    assert {trace["exit"] for trace in counts(results, "pope")} == {"agree_short"}
    assert {trace["exit"] for trace in counts(results, "mmmu_val_s")} == {"agree_think"}
    assert set(results["usage"]["by_task"]) == {"pope", "mmmu_val_s"}
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("|pope", "|mmmu_val_s"))]
    assert [row.split("|")[2].strip() for row in rows[:2]] == ["12", "12"]


def test_two_stage_tasks_are_refused_in_mode_transfer_before_an_engine_starts(
    evaluate: Any, tasks: Loaded, write_script: Any
) -> None:
    scripts = pope_scripts(write_script, "pope_r")
    with logged() as messages:
        with pytest.raises(ArgumentError, match=r"mode=transfer cannot run chartqa_e_s2, .* for example chartqa_e\.$"):
            evaluate(["mai_e_s2"], {"limit": 1}, **scripts, mode="transfer")
        # lmms-eval passes the requests of pope_r first, and those of pope_r_s2 in a later call.
        model = MaiCascade(**scripts, mode="transfer", journal="off")
        documents = {"test": tasks.chat["pope_r"].test_docs()}
        model.task_dict = {"pope_r": documents, "pope_r_s2": documents}
        with pytest.raises(ArgumentError, match=r"mode=transfer cannot run pope_r_s2: .* for example pope_r\.$"):
            model.generate_until(tasks.chat["pope_r"].instances)
        assert not any("starting" in text for text in messages)
        model.task_dict = {"pope_r": documents, **model.task_dict}  # the next evaluation has no _s2 task
        assert len(model.generate_until(tasks.chat["pope_r"].instances)) == 12
        model.clean()
        assert any("starting small" in text for text in messages)


def test_repeats_are_answered_one_by_one(evaluate: Any, write_script: Any) -> None:
    answers = [
        record("pope_s", doc_id, "short", f"[[{text}]]", repeat=repeat)
        for doc_id in range(3)
        for repeat, text in enumerate(["Yes", "No", "Yes"])
    ]
    scripts = {side: str(write_script(side, answers)) for side in ("small", "large")}
    results = evaluate(["pope_s"], {"repeats": 3, "limit": 3}, engine="scripted", **scripts)
    samples = results["samples"]["pope_s"]
    assert [one["resps"] for one in samples] == [[["[[Yes]]", "[[No]]", "[[Yes]]"]]] * 3
    assert results["usage"]["by_source"]["small"]["n_api_calls"] == 9


def test_task_with_an_unknown_benchmark_is_refused_before_any_call(
    evaluate: Any, write_script: Any, tmp_path: Path
) -> None:
    from lmms_eval.tasks import TaskManager

    metadata = "metadata: {mai: {benchmark: mmvet, variant: s}}"
    (tmp_path / "other.yaml").write_text(f"include: {task_dir()}/pope/pope_s.yaml\ntask: other\n{metadata}\n")
    tasks = TaskManager(include_path=str(tmp_path), include_defaults=False)
    scripts = {side: write_script(side, []) for side in ("small", "large")}
    with pytest.raises(ArgumentError, match=r"Task other .*mmvet.* must name a benchmark \(pope, "):
        evaluate(["other"], {"task_manager": tasks}, engine="scripted", **scripts)


def test_ranks_share_the_documents_and_padding_is_answered_without_a_call(
    command: type[Command], write_script: Any, in_drawn_data: Path, tmp_path: Path
) -> None:
    scripts = pope_scripts(write_script, "pope_s")
    given = {**scripts, "journal": tmp_path / "journal"}
    line = ["--model", "mai_cascade", "--model_args", ",".join(f"{k}={v}" for k, v in given.items())]
    line += ["--tasks", "pope_s", "--limit", "5", "--output_path", str(tmp_path / "out"), "--log_samples"]
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        command(in_drawn_data, tmp_path / rank, *line, environment={**group, "RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    ends = [command.end() for command in ranks]
    text = "".join(printed for _, printed in ends)
    assert [code for code, _ in ends] == [0, 0], text
    # Rank 0 has documents 0, 2 and 4; rank 1 has 1 and 3, and one request of padding. The table is that of the run.
    (cells,) = [line.split("|")[1:6] for line in text.splitlines() if line.startswith("|pope_s|") and "%" in line]
    assert [cell.strip() for cell in cells[1:]] == ["5", "2 (40.00%)", "2 (40.00%)", "1 (20.00%)"]
    assert ", 2 ranks" in text
    (file,) = (tmp_path / "out").rglob("*_mai_cascade.json")
    figures = json.loads(file.read_text())
    assert figures["ranks"] == 2 and figures["tasks"]["pope_s"]["small"]["calls"] == 5 + 3
    assert figures["tasks"]["pope_s"]["large"]["stages"]["transfer"]["calls"] == 1
    (file,) = (tmp_path / "out").rglob("*_samples_pope_s.jsonl")
    samples = [json.loads(line) for line in file.read_text().split("\n") if line]
    assert {s["doc_id"]: s["token_counts"][0]["exit"] for s in samples} == {i: exit_of(i) for i in range(5)}
    assert list((tmp_path / "journal").iterdir()) == []  # rank 0 removes the journals of all ranks
