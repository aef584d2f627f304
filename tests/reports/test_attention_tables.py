"""The tables of `lmms-eval-mai attention` in a report. tests/cli/test_attention.py has them from a real output."""

import json
from pathlib import Path
from typing import Any

from support.folders import POPE

from lmms_eval_mai.attention import results
from lmms_eval_mai.reports.build import NO_RUN, evidence, report
from lmms_eval_mai.reports.report import Estimate


def estimate(name: str, value: float, low: float | None, high: float | None) -> dict[str, Any]:
    return {name: value, f"{name}_low": low, f"{name}_high": high}


TABLE_9 = [
    {
        **{"method": "full", "layer": None, "documents": 40, **estimate("score", 0.9, 0.8, 0.95)},
        **estimate("kept_tokens", 50, 45, 55),
        **estimate("prefilled_tokens", 120, 110, 130),
        **{f"against_{other}_p_holm": None for other in ("full", "random", "last")},
    },
    {
        **{"method": "sparse", "layer": 12, "documents": 40, **estimate("score", 0.85, 0.7, 0.9)},
        **estimate("kept_tokens", 20, 18, 22),
        **estimate("prefilled_tokens", 230, 220, 240),
        **{"against_full_p_holm": 0.5, "against_random_p_holm": 0.01, "against_last_p_holm": 1.0},
    },
]
SMALL = {"thinking": "small", "documents": 40}
LAYER_1 = {**SMALL, "layer": 1, **estimate("kept_tokens", 20, 18, 22), **estimate("token_share", 0.4, 0.35, 0.45)}
LAYER_2 = {**SMALL, "layer": 2, **estimate("kept_tokens", 5, None, None), **estimate("token_share", 0.1, None, None)}
TABLE_16 = [
    {**LAYER_1, "rank": 1, "token": " ", "weight_share": 0.25},
    {**LAYER_1, "rank": 2, "token": "\n", "weight_share": 0.125},
    {**LAYER_2, "rank": 1, "token": "the", "weight_share": 0.5},
]


def write(folder: Path, large: str = "big") -> Path:
    folder.mkdir(parents=True)
    engines = {side: {"engine": "vllm", "model": model} for side, model in (("small", "tiny"), ("large", large))}
    (folder / "settings.json").write_text(json.dumps({"task": "shapes_r", "engines": engines, "delta": 0.8}))
    results.write(folder, {"table9": TABLE_9, "table16": TABLE_16, "figure3": [LAYER_1]})
    return folder


def test_output_of_attention_beside_a_run_gives_table_9_with_its_controls_and_table_16(tmp_path: Path) -> None:
    POPE.write(tmp_path / "run", "cascade")
    write(tmp_path / "attention" / "shapes_r")
    found = report([tmp_path])
    table = found.table("table-9-attention-shapes_r")
    assert table.title.endswith("on shapes_r, big + tiny")
    assert table.rows[1] == (
        *("sparse", "12", 40, Estimate(20, 40, 18, 22), Estimate(230, 40, 220, 240), Estimate(85, 40, 70, 90)),
        *(0.5, 0.01, 1),
    )
    first, second = found.table("table-16-shapes_r").rows
    assert first == ("small", "1", 40, Estimate(20, 40, 18, 22), Estimate(40, 40, 35, 45), '" " 25.0, "\\n" 12.5')
    assert second == ("small", "2", 40, Estimate(5, 40), Estimate(10, 40), '"the" 50.0')
    assert found.table("table-16-shapes_r").label(first) == "small, 1"
    assert found.table("table-10") and NO_RUN not in found.gaps


def test_report_without_a_run_has_the_tables_of_attention_only(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b", large="other")
    found = report([tmp_path, tmp_path / "a"])
    assert [table.key for table in found.tables] == [
        *("table-9-attention-shapes_r", "table-16-shapes_r"),
        *("table-9-attention-shapes_r-2", "table-16-shapes_r-2"),
    ]
    assert found.gaps == (NO_RUN,)


def test_broken_output_of_attention_is_a_gap(tmp_path: Path) -> None:
    POPE.write(tmp_path / "run", "cascade")
    folder = write(tmp_path / "attention")
    sentence = f"{folder} is not used: a file of `lmms-eval-mai attention` in it is broken."
    (folder / "settings.json").write_text("{}")
    assert evidence([tmp_path])[0].gaps == [sentence]
    (folder / "attention.parquet").write_bytes(b"PAR1")
    runs, tables = evidence([tmp_path])
    assert (len(list(runs.of("cascade"))), tables, runs.gaps) == (1, [], [sentence])
