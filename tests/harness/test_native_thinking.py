"""Runs of lmms-eval with models that think by themselves, on scripted engines."""

from collections.abc import Callable
from typing import Any

import pytest
from support.pope_scripts import counts, record

pytestmark = pytest.mark.slow


def test_run_scores_what_follows_the_thinking_and_its_trace_has_both(
    evaluate: Callable[..., dict[str, Any]], write_script: Any, warnings: list[str], capsys: Any
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
