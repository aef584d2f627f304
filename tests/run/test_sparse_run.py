"""Sparse transfer of the demo pair on transformers: a run that is killed and resumed, and the Python API."""

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest
from support.processes import end, lines_of, start, strike

from lmms_eval_mai import Cascade
from lmms_eval_mai.plugin import task_dir

DOCUMENTS = 10
ARGUMENTS: dict[str, Any] = {
    "pair": "demo",
    "engine": "transformers",
    "dtype": "float32",
    "method": "full_rt",
    "transfer": "sparse",
}


@pytest.mark.long
def test_killed_run_on_transformers_keeps_the_tokens_that_an_undisturbed_cascade_keeps(tmp_path: Path) -> None:
    store, output, kept = tmp_path / "store", tmp_path / "found.json", tmp_path / "kept.jsonl"
    process = start(tmp_path, output, "shapes_s", DOCUMENTS, store=store, **ARGUMENTS)
    assert strike(process, store, after=DOCUMENTS + 8, how=signal.SIGKILL)  # some calls are scoring calls
    before = lines_of(store)
    kept.hardlink_to(next(store.glob("*.jsonl")))
    end(start(tmp_path, output, "shapes_s", DOCUMENTS, store=store, **ARGUMENTS))
    found = json.loads(output.with_suffix(".samples.json").read_text())

    calls = [json.loads(line) for line in kept.read_text().splitlines() if '"call":' in line]
    assert set(Counter(tuple(call["key"]) for call in calls).values()) == {1} and len(calls) == 3 * DOCUMENTS
    assert any('"score"' in line for line in before) and len(before) < len(calls)

    shapes = datasets.load_dataset("parquet", data_files=str(task_dir() / "shapes" / "test.parquet"), split="train")
    with Cascade(**ARGUMENTS) as mai:
        futures = [mai.submit(doc["image"], doc["question"], _options(doc)) for doc in shapes.select(range(DOCUMENTS))]
        traces = [future.result() for future in futures]
    for sample, trace in zip(found, traces, strict=True):
        selection, expected = sample["token_counts"][0]["selection"], trace.selection
        assert expected is not None and sample["resps"][0][0] == trace.answer.text
        assert {name: selection[name] for name in ("layer", "text", "kept_tokens", "scored_tokens")} == {
            "layer": 2,
            "text": expected.text,
            "kept_tokens": expected.kept_tokens,
            "scored_tokens": expected.scored_tokens,
        }
        assert 0 < selection["kept_tokens"] < selection["scored_tokens"] and selection["share"] >= 0.8
        thinking, score, transfer = sample["token_counts"][0]["calls"]
        assert selection["text"] != thinking["text"] and transfer["prompt_tokens"] < score["prompt_tokens"]


def _options(doc: dict[str, Any]) -> list[str] | None:
    return [doc[letter] for letter in "ABCD" if doc[letter]] or None
