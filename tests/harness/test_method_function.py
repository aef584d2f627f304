"""The function in docs/methods.md, which no list of steps can express."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.pope_scripts import counts, gold_of, record

from lmms_eval_mai.method.methods import METHODS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "methods.md"


def test_function_of_the_documentation_makes_its_own_calls_and_is_scored_and_resumed(
    evaluate: Callable[..., dict[str, Any]], write_script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    *_, program = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    monkeypatch.setitem(METHODS, "both_think", None)  # so that the test leaves no method behind
    exec(program, {"__name__": "example"})
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
