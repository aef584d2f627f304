"""Methods of the user, and models that think by themselves, in runs of lmms-eval on scripted engines."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.pope_scripts import counts, gold_of, record

from lmms_eval_mai.method.methods import METHODS

Evaluate = Callable[..., dict[str, Any]]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "both_think.py"


def test_function_of_the_examples_makes_its_own_calls_and_is_scored_and_resumed(
    evaluate: Evaluate, write_script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(METHODS, "both_think", None)  # so that the test leaves no method behind
    exec(EXAMPLE.read_text(encoding="utf-8"), {"__name__": "example"})
    small, large = [], []
    for doc_id, gold in enumerate(gold_of("POPE", "test")[:12]):
        right, wrong = f"[[{gold.title()}]]", "[[No]]" if gold == "yes" else "[[Yes]]"
        small.append(record("pope_s", doc_id, "think", right if doc_id % 2 else wrong, output_tokens=doc_id))
        large.append(record("pope_s", doc_id, "think", right))
        large.append(record("pope_s", doc_id, "transfer", right))
    scripts = {side: write_script(side, records) for side, records in (("small", small), ("large", large))}
    given = {"engine": "scripted", "method": "both_think", "store": tmp_path / "store", "keep_store": "true"}
    for _ in range(2):  # the second run has all its calls from the store
        results = evaluate(["pope_s"], **scripts, **given)
        assert results["results"]["pope_s"]["pope_accuracy,none"] == 1
        traces = counts(results, "pope_s")
        assert Counter(trace["exit"] for trace in traces) == {"agree_think": 6, "transfer": 6}
        thinking = {("think", "think"), ("think", "think", "transfer")}
        assert {tuple(call["prompt"] for call in trace["calls"]) for trace in traces} == thinking
        longer = ["large.think"] * 3 + ["small.think"] * 3  # the latter have 6 to 10 tokens, and the former 5
        assert [trace["calls"][2]["of"] for trace in traces[::2]] == longer


@pytest.mark.slow
def test_run_scores_what_follows_the_thinking_and_its_trace_has_both(
    evaluate: Evaluate, write_script: Any, warnings: list[str], capsys: Any
) -> None:
    small, large = [], []
    for number in range(4):
        small.append(record("pope_s", number, "simple", "[[Maybe]]"))
        small.append(record("pope_s", number, "native", "a dog [[No]]</think>\n\n[[Yes]]"))
        large.append(record("pope_s", number, "simple", "no dog</think>[[No]]" if number == 3 else "[[Yes]]"))
        large.append(record("pope_s", number, "transfer", "[[No]]"))
        large.append(record("pope_s", number, "native", "<|channel>thought\na dog<channel|>[[Yes]]"))
    scripts = {"small": write_script("small", small), "large": write_script("large", large), "engine": "scripted"}
    found = counts(evaluate(["pope_s"], {"limit": 4}, think="native", **scripts), "pope_s")
    assert [one["exit"] for one in found] == ["agree_think"] * 3 + ["transfer"]
    assert found[0]["options"] == {"think": "native"} and "thinking" not in found[0]["calls"][0]
    native = next(call for call in found[0]["calls"] if call["prompt"] == "native")
    assert (native["thinking"], native["text"], native["parsed"]) == ("a dog [[No]]", "[[Yes]]", "yes")
    assert found[3]["calls"][-1]["of"] == "small.native"
    told = [line for line in warnings if "the model thought before its short answer" in line]
    assert len(told) == 1 and "pope_s document 3, large simple" in told[0]
    assert "Short answers with a thinking of the model's own: 1 calls of the large model." in capsys.readouterr().out
    alone = counts(evaluate(["pope_s"], {"limit": 4}, think="native", method="large", **scripts), "pope_s")
    assert [(one["exit"], one["calls"][0]["prompt"], one["parsed"]) for one in alone] == [
        ("large", "native", "yes")
    ] * 4
    silent = write_script("silent", [record("pope_s", number, "native", "[[Yes]]") for number in range(4)])
    evaluate(["pope_s"], {"limit": 4}, think="native", method="large", **{**scripts, "large": silent})
    assert sum("the model did not think" in line for line in warnings) == 1
