"""Other methods and other tasks in runs of lmms-eval on scripted engines: one model alone, models that
think by themselves, a method of the user, and tasks of lmms-eval itself."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.logs import logged
from support.pair import counts, gold_of, pope_scripts, record, written

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.method.methods import METHODS

Evaluate = Callable[..., dict[str, Any]]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "both_think.py"


def test_function_of_the_examples_makes_its_own_calls_and_is_scored_and_resumed(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(METHODS, "both_think", None)  # so that the test leaves no method behind
    exec(EXAMPLE.read_text(encoding="utf-8"), {"__name__": "example"})
    small, large = [], []
    for doc_id, gold in enumerate(gold_of("POPE", "test")[:12]):
        right, wrong = f"[[{gold.title()}]]", "[[No]]" if gold == "yes" else "[[Yes]]"
        small.append(record("pope_s", doc_id, "think", right if doc_id % 2 else wrong, output_tokens=doc_id))
        large.append(record("pope_s", doc_id, "think", right, output_tokens=5))
        large.append(record("pope_s", doc_id, "transfer", right))
    scripts = written(tmp_path, {"small": small, "large": large})
    given = {"method": "both_think", "store": tmp_path / "store", "keep_store": "true"}
    for is_resumed in (False, True):  # with all its calls from the store
        results = evaluate(["pope_s"], **scripts, **given)
        assert bool(results.get("throughput")) is not is_resumed  # its time would be that of the second run alone
        assert results["results"]["pope_s"]["pope_accuracy,none"] == 1
        traces = counts(results, "pope_s")
        assert Counter(trace["exit"] for trace in traces) == {"agree_think": 6, "transfer": 6}
        thinking = {("think", "think"), ("think", "think", "transfer")}
        assert {tuple(call["prompt"] for call in trace["calls"]) for trace in traces} == thinking
        longer = ["large.think"] * 3 + ["small.think"] * 3  # the latter have 6 to 10 tokens, and the former 5
        assert [trace["calls"][2]["of"] for trace in traces[::2]] == longer


@pytest.mark.slow
def test_run_scores_what_follows_the_thinking_and_its_trace_has_both(
    evaluate: Evaluate, tmp_path: Path, warnings: list[str], capsys: Any
) -> None:
    small, large = [], []
    for number in range(4):
        small.append(record("pope_s", number, "simple", "[[Maybe]]"))
        small.append(record("pope_s", number, "native", "a dog [[No]]</think>\n\n[[Yes]]"))
        large.append(record("pope_s", number, "simple", "no dog</think>[[No]]" if number == 3 else "[[Yes]]"))
        large.append(record("pope_s", number, "transfer", "[[No]]"))
        large.append(record("pope_s", number, "native", "<|channel>thought\na dog<channel|>[[Yes]]"))
    scripts = written(tmp_path, {"small": small, "large": large})
    found = counts(evaluate(["pope_s"], {"limit": 4}, think="native", **scripts), "pope_s")
    assert [one["exit"] for one in found] == ["agree_think"] * 3 + ["transfer"]
    assert found[0]["options"] == {"think": "native"} and "thinking" not in found[0]["calls"][0]
    native = next(call for call in found[0]["calls"] if call["prompt"] == "native")
    assert (native["thinking"], native["text"], native["parsed"]) == ("a dog [[No]]", "[[Yes]]", "yes")
    assert found[3]["calls"][-1]["of"] == "small.native"
    told = [line for line in warnings if "the model thought before its short answer" in line]
    assert len(told) == 1 and "pope_s document 3, large simple" in told[0]
    assert "Short answers with a thinking of the model's own: 1 calls of the large model." in capsys.readouterr().out
    silent = written(tmp_path, {"large": [record("pope_s", number, "native", "[[Yes]]") for number in range(4)]})
    evaluate(["pope_s"], {"limit": 4}, think="native", method="large", **silent)
    assert sum("the model did not think" in line for line in warnings) == 1


def test_a_model_alone_runs_every_task_with_its_own_prompt(evaluate: Evaluate, tmp_path: Path) -> None:
    prompts = {"pope_s": ["simple"], "pope_r": ["think"], "pope_r_s2": ["think", "stage2"]}
    results = evaluate([*prompts], **pope_scripts(tmp_path, *prompts), method="small")
    for task, expected in prompts.items():
        assert results["results"][task]["pope_accuracy,none"] == pytest.approx(4 / 12)
        assert [[call["prompt"] for call in trace["calls"]] for trace in counts(results, task)] == [expected] * 12
    assert set(results["usage"]["by_source"]) == {"small"}


@pytest.mark.slow
def test_a_run_of_lmms_evals_tasks_is_scored_as_one_model_is_and_tells_about_the_prompts_once_per_task(
    evaluate: Any, tmp_path: Path
) -> None:
    golds = {"pope": [gold.title() for gold in gold_of("POPE", "test")], "chartqa": gold_of("ChartQA", "test")}
    golds["pope"][3] = f"[[{golds['pope'][3]}]]"  # its scorer reads no answer in brackets
    records = [record(name, doc_id, "task", text) for name in golds for doc_id, text in enumerate(golds[name])]
    scripts, runs = written(tmp_path, dict.fromkeys(SIDES, records)), []
    for method in ("mai", "large"):
        with logged() as messages:
            runs.append(evaluate([*golds], **scripts, log_prompts=True, method=method))
        notices = [text for text in messages if "is not a task of lmms-eval-mai" in text]
        assert [text.split()[1] for text in notices] == ([*golds] if method == "mai" else [])
    for name in golds:
        assert {trace["exit"] for trace in counts(runs[0], name)} == {"agree_short"}
        responses = [{one["doc_id"]: one["resps"] for one in run["samples"][name]} for run in runs]
        prompts = [[trace["calls"][-1]["messages"] for trace in counts(run, name)] for run in runs]
        assert responses[0] == responses[1] and prompts[0] == prompts[1] and len(prompts[0]) == 12
    assert runs[0]["results"]["pope"] == runs[1]["results"]["pope"]
    assert runs[0]["results"]["pope"]["pope_accuracy,none"] == 11 / 12
