"""The tables of `lmms-eval-mai attention` in a report. tests/cli/test_attention.py has them from a real output."""

import json
from pathlib import Path

from support.folders import POPE

from lmms_eval_mai.reports.build import NO_RUN, report
from lmms_eval_mai.reports.reading import read
from lmms_eval_mai.reports.report import Estimate

TABLE_9 = """\
method,layer,documents,score,score_low,score_high,kept_tokens,kept_tokens_low,kept_tokens_high,prefilled_tokens,\
prefilled_tokens_low,prefilled_tokens_high,against_full_p_holm,against_random_p_holm,against_last_p_holm
full,,40,0.9,0.8,0.95,50,45,55,120,110,130,,,
sparse,12,40,0.85,0.7,0.9,20,18,22,230,220,240,0.5,0.01,1
"""
TABLE_16 = """\
thinking,layer,documents,kept_tokens,kept_tokens_low,kept_tokens_high,token_share,token_share_low,token_share_high,rank,\
token,weight_share
small,1,40,20,18,22,0.4,0.35,0.45,1," ",0.25
small,1,40,20,18,22,0.4,0.35,0.45,2,"
",0.125
small,2,40,5,,,0.1,,,1,the,0.5
"""


def write(folder: Path, large: str = "big") -> Path:
    folder.mkdir(parents=True)
    engines = {side: {"engine": "vllm", "model": model} for side, model in (("small", "tiny"), ("large", large))}
    (folder / "settings.json").write_text(json.dumps({"task": "shapes_r", "engines": engines, "delta": 0.8}))
    (folder / "table9.csv").write_text(TABLE_9)
    (folder / "table16.csv").write_text(TABLE_16)
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
    (folder / "table16.csv").write_text(TABLE_16.replace("0.25", "much"))
    found = read([tmp_path])
    assert len(found.runs) == 1
    assert found.gaps == [f"{folder} is not used: a file of `lmms-eval-mai attention` in it is broken."]
