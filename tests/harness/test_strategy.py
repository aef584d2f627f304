"""The strategy in docs/python-api.md, in the place of the paper's cascade."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.pope_scripts import counts, gold_of, record

from lmms_eval_mai.paper.cascade import MODES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python-api.md"


def test_strategy_of_the_documentation_makes_its_own_calls_and_is_scored_and_resumed(
    evaluate: Callable[..., dict[str, Any]], write_script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    *_, program = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": "example"}
    exec(program, names)
    monkeypatch.setitem(MODES, "cascade", names["both_think"])
    small, large = [], []
    for doc_id, gold in enumerate(gold_of("POPE", "test")[:12]):
        right, wrong = f"[[{gold.title()}]]", "[[No]]" if gold == "yes" else "[[Yes]]"
        small.append(record("pope_s", doc_id, "think", right if doc_id % 2 else wrong))
        large.append(record("pope_s", doc_id, "think", right))
        large.append(record("pope_s", doc_id, "transfer", right))
    scripts = {side: write_script(side, records) for side, records in (("small", small), ("large", large))}
    for _ in range(2):  # the second run has all its calls from the store
        results = evaluate(["pope_s"], engine="scripted", **scripts, store=tmp_path / "store", keep_store="true")
        assert results["results"]["pope_s"]["pope_accuracy,none"] == 1
        traces = counts(results, "pope_s")
        assert Counter(trace["exit"] for trace in traces) == {"agree_think": 6, "transfer": 6}
        assert {tuple(call["stage"] for call in trace["calls"]) for trace in traces} == {
            ("think", "think"),
            ("think", "think", "transfer"),
        }
