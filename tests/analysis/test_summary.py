"""The tables of every report where runs are sampled, or of another model; test_recomputed.py has the others."""

from pathlib import Path

from support.folders import WORLD, line, write_run
from support.tables import report, row_of

DOCUMENTS = WORLD.documents
MAI = ("POPE", "MAI")


def test_another_model_is_compared_and_has_its_tokens_without_a_trace(tmp_path: Path) -> None:
    WORLD.write(tmp_path, "mai")
    lines = [line(doc_id, one.gold, "yes", float(one.gold == "yes")) for doc_id, one in enumerate(DOCUMENTS)]
    for one in lines:
        one["token_counts"] = [{"input_tokens": 9, "output_tokens": 3}]
        one["pope_f1_score"] = {"prediction": "yes", "ground_truth": one["target"]}
    write_run(tmp_path, "pope", lines, model="qwen3_vl", model_args="pretrained=a/big", time="20260102_000000")
    found = report([tmp_path], ("6",))
    row = row_of(found.table("methods"), "POPE", "big, own prompt")
    assert (row["small tokens"], row["large tokens"]) == (None, 3.0)
    (compared,) = [row for row in found.table("differences").rows if row[2] == "big, own prompt"]
    assert compared[6] == sum(
        one.gold == "yes" != trace.text for one, trace in zip(DOCUMENTS, WORLD.traces("mai"), strict=True)
    )
    assert row_of(found.table("tables-6-7-14"), "POPE", "big, own prompt")["score"]
