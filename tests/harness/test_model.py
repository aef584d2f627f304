"""The model inside lmms-eval: whole evaluations in this process, with scripted answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lmms_eval.tasks import TaskManager
from support.logs import logged
from support.pair import counts, exit_of, pope_scripts, record, written
from support.processes import write_pope

from lmms_eval_mai import ArgumentError, EngineCrashed, MaiCascade, TooManyErrors
from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.method.methods import MAI, steps_of
from lmms_eval_mai.plugin import task_dir

Evaluate = Callable[..., dict[str, Any]]


def test_a_run_has_lmms_evals_score_and_the_trace_of_every_sample(
    evaluate: Evaluate, tmp_path: Path, capsys: Any
) -> None:
    """Model arguments may be a mapping whose values have their types."""
    scripts = pope_scripts(tmp_path, "pope_s")
    given = {"transfer_answer": "keep", "log_prompts": True, "store": False, "small_slots": 3, "pair": None}
    results = evaluate(["pope_s"], {"model_args": scripts | given})
    assert results["config"]["model_args"] == scripts | given
    assert results["results"]["pope_s"]["pope_accuracy,none"] == 1.0

    traces = counts(results, "pope_s")
    *_, thinking, transferred = traces[2]["calls"]
    assert f"According to previous thinking: {thinking['text']}\n" in str(transferred["messages"][-1]["content"][-1])
    assert [trace["exit"] for trace in traces] == [exit_of(i) for i in range(12)]
    calls = [call for trace in traces for call in trace["calls"]]
    assert len(calls) == 4 * 2 + 4 * 3 + 4 * 4
    small, large, thought = (call["parsed"] for call in traces[1]["calls"])
    assert small != large == thought == traces[1]["parsed"]
    for trace in traces:
        assert trace["readable"] and {side: trace[side] for side in ("small", "large")}.items() <= scripts.items()
        assert (trace["steps"], trace["options"]) == (steps_of(MAI), {"transfer_answer": "keep"})
        assert trace["output_tokens"] == sum(call["output_tokens"] for call in trace["calls"])
        assert trace["input_tokens"] == sum(call["prompt_tokens"] for call in trace["calls"])

    usage = results["usage"]["by_source"]
    assert usage["small"]["n_api_calls"] == 12 + 8 and usage["large"]["n_api_calls"] == 12 + 4
    assert results["usage"]["by_task"]["pope_s"]["n_api_calls"] == len(calls)
    seconds, tokens = (results["throughput"][f"total_{name}"] for name in ("elapsed_time", "gen_tokens"))
    assert 0 < seconds < 60 and tokens == 12 * 5 + 8 * 50 + (12 + 4) * 5
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if line.startswith("pope_s "))
    assert row.split()[:7] == ["pope_s", "12", "33.3", "33.3", "33.3", "20", "460"]
    assert row.split()[-3:-1] == ["16", "80"] and f"Wall time {seconds:.1f} s." in printed


@pytest.mark.parametrize("task", ["pope_s", "pope_r_s2", "pope"])
def test_the_system_instruction_is_the_first_message_of_every_call(
    evaluate: Evaluate, tmp_path: Path, task: str
) -> None:
    options = {"system_instruction": "Look twice.", "limit": 3}
    results = evaluate([task], options, **pope_scripts(tmp_path, task), log_prompts=True, store="off")
    prompts = [call["messages"] for trace in counts(results, task) for call in trace["calls"]]
    assert len(prompts) >= 9
    for system, *others in prompts:
        assert system == {"role": "system", "content": ["Look twice."]}
        assert [message["role"] for message in others] == ["user"] and "Look twice." not in str(others)


@pytest.mark.parametrize(
    ("tasks", "answered", "max_errors", "message"),
    [
        (["pope_s"], 11, 0, "1 of 12 samples failed, and max_errors=0 allows 0"),
        (["pope_s"], 9, 0.2, "3 of 12 samples failed, and max_errors=0.2 allows 2"),
        # One-stage and two-stage tasks reach the model in two calls of lmms-eval, here with two errors each.
        (["pope_s", "pope_r_s2"], 10, 3, "4 of 24 samples failed, and max_errors=3 allows 3"),
    ],
)
def test_run_with_more_errors_than_max_errors_stops_and_names_the_failed_samples(
    evaluate: Evaluate, tmp_path: Path, tasks: list[str], answered: int, max_errors: float, message: str
) -> None:
    answers = [record(task, doc_id, "simple", "[[Yes]]") for task in tasks for doc_id in range(answered)]
    scripts = written(tmp_path, dict.fromkeys(SIDES, answers))
    with pytest.raises(TooManyErrors, match=message) as error:
        evaluate(tasks, **scripts, max_errors=max_errors)
    assert any(f"document {doc_id}" in str(error.value) for doc_id in range(answered, 12))
    assert "To resume, run the same command with the same models again." in str(error.value)


def test_the_error_of_an_engine_without_restarts_names_the_samples_that_failed_before(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    answers = [record("pope_s", doc_id, "simple", "[[Yes]]", seconds=0.01) for doc_id in range(3)]
    answers[0]["fault"], answers[2]["fault"] = "error", "death"
    scripts = written(tmp_path, dict.fromkeys(SIDES, answers))
    with pytest.raises(EngineCrashed, match=r"1 sample failed:\n  SampleError: pope_s document 0"):
        evaluate(["pope_s"], {"limit": 3}, max_errors=3, engine_restarts=0, max_open_samples=1, **scripts)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "max_errors"), [("pope_s", 3), ("pope_r_s2", 0.25)])
def test_failed_samples_are_counted_and_neither_scored_nor_cached(
    evaluate: Evaluate,
    capsys: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    max_errors: float,
) -> None:
    # With a run id, lmms-eval reads the cache's log of the previous run, in which blank texts count as answers.
    monkeypatch.setenv("LMMS_CACHE_RUN_ID", "the-same")
    scripts = pope_scripts(tmp_path, task, rows=9)
    results = evaluate([task], {"use_cache": str(tmp_path / "cache")}, max_errors=max_errors, **scripts)
    assert results["results"][task]["pope_accuracy,none"] == 1.0
    assert sorted(sample["doc_id"] for sample in results["samples"][task]) == list(range(9))
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if line.startswith(f"{task} "))
    assert row.split()[:4] == [task, "9", "3", "33.3"]
    assert "3 samples have no answer and are left out of all scores: 3 MissingAnswer" in printed
    # lmms-eval's response cache did not store them as answers: with complete scripts, they are answered.
    whole = pope_scripts(tmp_path, task, rows=12)
    again = evaluate([task], {"use_cache": str(tmp_path / "cache")}, max_errors=max_errors, **whole)
    assert len(again["samples"][task]) == 12 and again["usage"]["by_source"]["large"]["n_api_calls"] == 4


def test_repeats_are_answered_one_by_one_and_a_document_fails_if_one_of_its_repeats_fails(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    answers = [
        record("pope_s", doc_id, "simple", f"[[{text}]]", repeat=repeat)
        for doc_id in range(4)
        for repeat, text in enumerate(["Yes", "No", "Yes"])
        if (doc_id, repeat) not in ((1, 1), (3, 0))
    ]
    scripts = written(tmp_path, dict.fromkeys(SIDES, answers))
    results = evaluate(["pope_s"], {"repeats": 3, "limit": 4}, **scripts, max_errors=2)
    samples = {sample["doc_id"]: sample["resps"] for sample in results["samples"]["pope_s"]}
    assert samples.keys() == {0, 2} and samples[0] == samples[2] == [["[[Yes]]", "[[No]]", "[[Yes]]"]]
    assert [len(trace["repeats"]) for trace in counts(results, "pope_s")] == [2, 2]
    assert results["usage"]["by_source"]["small"]["n_api_calls"] == 10


@pytest.mark.parametrize(("grouped", "order"), [(True, [0, 2, 1, 3]), (False, [0, 1, 2, 3])])
def test_questions_about_one_image_are_asked_next_to_each_other(
    evaluate: Evaluate,
    drawn_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    grouped: bool,
    order: list[int],
) -> None:
    from pyarrow import parquet

    scripts = pope_scripts(tmp_path, "pope_s")
    rows = parquet.read_table("lmms-lab-encoder/POPE/data/test.parquet").slice(0, 4).to_pylist()
    rows = [{**row, "image": rows[number % 2]["image"]} for number, row in enumerate(rows)]
    monkeypatch.chdir(write_pope(drawn_data, tmp_path, f"grouped-{grouped}", rows))
    results = evaluate(["pope_s"], **scripts, group_images=grouped, max_open_samples=1, store="off")
    # The times of scripted calls are recorded ones, but the end of a call is a real time.
    traces = counts(results, "pope_s")
    ended = [max(call["started_at"] + call["total_s"] for call in trace["calls"]) for trace in traces]
    assert sorted(range(4), key=ended.__getitem__) == order


@pytest.mark.parametrize(
    ("task", "options", "named"),
    [
        ("pope_s", {"gen_kwargs": "min_q=0.1"}, "min_q"),
        ("pope_s", {"cache_requests": True}, "--cache_requests"),
        ("pope_s", {"apply_chat_template": True}, "--apply_chat_template"),
        ("pope_s", {"max_tokens": 50}, "--max_tokens 50"),
        ("mai_e_s2", {"method": "full_rt"}, "_e_s2"),
        ("metadata: {mai: {benchmark: mmvet, variant: s}}", {}, "mmvet"),
        ("output_type: generate_until_agentic", {}, "Leave out task other: .* generate_until_agentic requests"),
    ],
)
def test_what_cannot_work_is_refused_before_an_engine_starts(
    evaluate: Evaluate, monkeypatch: Any, tmp_path: Path, task: str, options: Any, named: str
) -> None:
    """`tests/test_refusals.py` has what the model refuses without a task. A task with a colon is a line of its file."""
    monkeypatch.setattr("lmms_eval.caching.cache.PATH", str(tmp_path))
    given = {"limit": 1, "method": "mai", **options}
    if ":" in task:
        (tmp_path / "other.yaml").write_text(f"include: {task_dir()}/pope/pope_s.yaml\ntask: other\n{task}\n")
        task, given["task_manager"] = "other", TaskManager(include_path=str(tmp_path), include_defaults=False)
    scripts, method = written(tmp_path, {side: [] for side in SIDES}), given.pop("method")
    with logged() as messages, pytest.raises(ArgumentError, match=named):
        evaluate([task], given, **scripts, method=method)
    assert not any("starting" in message for message in messages)


def test_ignored_decoding_arguments_are_named_in_a_warning_and_the_others_are_in_the_trace(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    scripts = pope_scripts(tmp_path, "pope_s")
    with logged() as messages:
        options = {"limit": 2, "gen_kwargs": "temperature=0.7,top_k=0,visual_cot=True"}
        (first, _) = counts(evaluate(["pope_s"], options, **scripts), "pope_s")
    assert first["options"] == {"temperature": 0.7}
    assert len([message for message in messages if "pope_s: mai_cascade ignores visual_cot" in message]) == 1


@pytest.mark.slow
def test_kept_engines_start_once_until_they_are_closed_or_an_evaluation_stops(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    """A `with` block that ends with an error keeps the store."""
    scripts, store = pope_scripts(tmp_path, "pope_s"), tmp_path / "store"
    model = MaiCascade(**scripts, store=str(store))

    def run_again(starts: int) -> None:
        results = evaluate(["pope_s"], model=model)
        assert results["results"]["pope_s"]["pope_accuracy,none"] == 1.0
        assert [trace["exit"] for trace in counts(results, "pope_s")] == [exit_of(number) for number in range(12)]
        assert results["usage"]["by_source"]["small"]["n_api_calls"] == 12 + 8  # of this run alone
        assert sum("small is ready" in text for text in messages) == starts
        assert len(list(store.iterdir())) == 1  # the next evaluation removes it, or `close`

    with logged() as messages:
        with model:
            run_again(starts=1)
            run_again(starts=1)
            with pytest.raises(ArgumentError, match="temprature"):
                evaluate(["pope_s"], {"gen_kwargs": "temprature=1"}, model)
            run_again(starts=2)
            model.close()
            assert list(store.iterdir()) == []
        run_again(starts=3)  # outside the block they stop after each evaluation
        run_again(starts=4)
        with pytest.raises(ZeroDivisionError), model:
            run_again(starts=5)
            raise ZeroDivisionError
    assert len(list(store.iterdir())) == 1
