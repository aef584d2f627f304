"""The figures of a run, on the model object and in the file beside lmms-eval's results, and the traces of repeats."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.pope_scripts import pope_scripts
from support.processes import Command

from lmms_eval_mai.harness.model import MaiCascade

Record = dict[str, Any]


@pytest.fixture
def scripts(write_script: Any) -> dict[str, str]:
    """Scripts for pope_s and pope_r_s2. In pope_s, document 3 fails and the final answer to document 5 cannot be
    read."""
    arguments = pope_scripts(write_script, "pope_s", "pope_r_s2")
    records = {
        side: [json.loads(line) for line in Path(arguments[side]).read_text().splitlines()]
        for side in ("small", "large")
    }

    def change(side: str, doc_id: int, stage: str, **fields: str) -> None:
        names = [(one["task"], one["doc_id"], one["stage"]) for one in records[side]]
        records[side][names.index(("pope_s", doc_id, stage))] |= fields

    change("small", 3, "short", fault="error")
    change("large", 5, "transfer", text="[[perhaps]]")
    return {"engine": "scripted", "max_errors": "10"} | {
        side: str(write_script(side, found)) for side, found in records.items()
    }


def traces_of(samples: list[Record]) -> Iterator[Record]:
    """Return the traces of all samples and of all their repeats."""
    for sample in samples:
        (first,) = sample["token_counts"]
        yield from (first, *first.get("repeats", []))


def sums(calls: list[Record]) -> Record:
    tokens = {name: sum(call[name] for call in calls) for name in ("prompt_tokens", "cached_tokens", "output_tokens")}
    return {"calls": len(calls), "call_seconds": pytest.approx(sum(c["total_s"] for c in calls), abs=1e-3), **tokens}


def check(figures: Record, samples: dict[str, list[Record]]) -> None:
    """Compare the figures with the traces of all samples and repeats."""
    assert figures["tasks"].keys() == samples.keys()
    for task, found in figures["tasks"].items():
        traces = list(traces_of(samples[task]))
        assert found["samples"] == len(traces)
        assert found["unreadable"] == sum(not trace["readable"] for trace in traces)
        assert {exit: count for exit, count in found["exits"].items() if count} == Counter(t["exit"] for t in traces)
        for side in figures["engines"]:
            calls = [call for trace in traces for call in trace["calls"] if call["side"] == side]
            by_stage = {stage: [c for c in calls if c["stage"] == stage] for stage in {c["stage"] for c in calls}}
            assert sums(calls).items() <= found[side].items()
            assert found[side]["stages"].keys() == by_stage.keys()
            assert all(sums(by_stage[s]).items() <= usage.items() for s, usage in found[side]["stages"].items())
    assert figures["samples"] == sum(found["samples"] for found in figures["tasks"].values())
    walls = [found["wall_s"] for found in figures["tasks"].values()]
    assert all(wall_s > 0 for wall_s in walls) and sum(walls) == pytest.approx(figures["wall_s"], abs=1e-3)


def files_of(folder: Path) -> list[tuple[Record, Record, dict[str, list[Record]]]]:
    """Return the figures, the results and the samples by task of each run that wrote to a folder."""
    found = []
    for results in sorted(folder.rglob("*_results.json")):
        time = results.name.removesuffix("_results.json")
        samples = {
            file.name.removeprefix(f"{time}_samples_").removesuffix(".jsonl"): [
                json.loads(line) for line in file.open()
            ]
            for file in results.parent.glob(f"{time}_samples_*.jsonl")
        }
        figures = json.loads((results.parent / f"{time}_mai_cascade.json").read_text())
        found.append((figures, json.loads(results.read_text()), samples))
    assert len(list(folder.rglob("*_mai_cascade.json"))) == len(found)
    return found


def test_figures_of_the_model_object_are_sums_over_the_traces_of_all_tasks_and_repeats(
    task_manager: Any, in_drawn_data: Path, scripts: dict[str, str], capsys: Any
) -> None:
    from lmms_eval.evaluator import simple_evaluate

    model = MaiCascade.create_from_arg_string(",".join(f"{name}={value}" for name, value in scripts.items()))
    assert model.figures == {}
    results = simple_evaluate(
        model=model,
        tasks=["pope_s", "pope_r_s2"],
        task_manager=task_manager,
        batch_size=1,
        log_samples=True,
        repeats=3,
    )
    figures = model.figures
    assert figures == json.loads(json.dumps(figures))
    check(figures, results["samples"])
    assert figures["tasks"]["pope_s"]["samples"] == 3 * 11 and figures["tasks"]["pope_r_s2"]["samples"] == 3 * 12
    assert figures["tasks"]["pope_s"]["unreadable"] == 3
    assert figures["not_answered"] == figures["tasks"]["pope_s"]["not_answered"] == 3
    assert figures["engines"]["small"] == {
        "engine": "scripted",
        "model": scripts["small"],
        "settings": "replays recorded answers, 256 at a time",
    }
    assert f"Wall time {figures['wall_s']:.1f} s: pope_r_s2 " in capsys.readouterr().out

    # What lmms-eval calls an average is one, and its sums are those of the figures.
    engines = {side: [task[side] for task in figures["tasks"].values()] for side in ("small", "large")}
    throughput = results["throughput"]
    averages = {name: value for name, value in throughput.items() if name.startswith("avg_")}
    assert averages.pop("avg_speed") == pytest.approx(throughput["total_gen_tokens"] / figures["wall_s"], rel=1e-3)
    assert averages.pop("avg_latency") == pytest.approx(figures["wall_s"] / figures["samples"], rel=1e-3)
    assert averages.pop("avg_not_answered_share") == 3 / (figures["samples"] + 3)
    for exit in ("agree_short", "agree_think", "transfer"):
        count = sum(task["exits"][exit] for task in figures["tasks"].values())
        assert averages.pop(f"avg_exit_{exit}_share") == count / figures["samples"]
    for side, tasks in engines.items():
        for name in ("calls", "output_tokens", "cached_tokens", "call_seconds"):
            total = sum(task[name] for task in tasks)
            assert averages.pop(f"avg_{side}_{name}_per_sample") == pytest.approx(total / figures["samples"])
            if name in results["usage"]["by_source"][side]:
                assert results["usage"]["by_source"][side][name] == total
    assert averages == {}


def test_each_configuration_of_a_command_has_its_figures_beside_its_results(
    command: type[Command], in_drawn_data: Path, scripts: dict[str, str], tmp_path: Path
) -> None:
    given = {**scripts, "journal": tmp_path / "journal", "log_prompts": True}
    runs = [
        {"tasks": "pope_s,pope_r_s2", "repeats": 2, "model_args": {**given, "mode": "cascade"}},
        {"tasks": "pope_s", "model_args": {**given, "mode": "large", "log_prompts": False}},
    ]
    for run in runs:
        run["model_args"] = ",".join(f"{name}={value}" for name, value in run["model_args"].items())
        run |= {"model": "mai_cascade", "output_path": str(tmp_path / "out"), "log_samples": True}
    (tmp_path / "runs.yaml").write_text(yaml.safe_dump(runs))
    _, text = command(in_drawn_data, tmp_path / "log", "--config", str(tmp_path / "runs.yaml")).end()
    files = files_of(tmp_path / "out")
    assert [figures["mode"] for figures, _, _ in files] == ["cascade", "large"], text
    for figures, results, samples in files:
        assert f"mode={figures['mode']}" in results["config"]["model_args"]
        check(figures, samples)
    (cascade, _, samples), (large, _, alone) = files
    assert cascade["tasks"]["pope_s"]["samples"] == 22 and cascade["not_answered"] == 2
    assert large["tasks"]["pope_s"]["samples"] == 12 and large["engines"].keys() == {"large"}

    calls = [call for task in samples.values() for trace in traces_of(task) for call in trace["calls"]]
    assert all(message["role"] == "user" for call in calls for message in call["prompt"])
    assert not any("prompt" in call for trace in traces_of(alone["pope_s"]) for call in trace["calls"])
