"""A simulated run takes the time that `estimate` computes for full batches."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from lmms_eval_mai.harness.results import TraceCounts
from lmms_eval_mai.reports.call_times import Profiles
from lmms_eval_mai.reports.estimate import estimate

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_a_simulated_run_takes_the_time_that_estimate_computes_for_two_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    simulation: Any = importlib.import_module("scale_simulation")
    batches: Any = importlib.import_module("assumed_batches")
    lengths: Any = importlib.import_module("forced_lengths")
    profiles = {"small": batches.profile("2B"), "large": batches.profile("8B")}
    settings = simulation.Settings(profiles, slots=batches.BATCH_SIZE, open_samples=256)
    run, traces = simulation.simulate(2500, settings, tmp_path)  # each document of ChartQA once

    transfers = [trace.answer for trace in traces if trace.exit == "transfer"]
    assert transfers and {call.cached_tokens for call in transfers} == {lengths.IMAGE_TOKENS}
    lines = [
        {"doc_id": n, "target": "1", "filtered_resps": trace.text, "input": "", "score": 1.0}
        | {"token_counts": [TraceCounts.of(trace).to_dict()]}
        for n, trace in enumerate(traces)
    ]
    lengths.write(tmp_path / "run", "chartqa", "cascade", lines)
    named = Profiles(list(profiles.values()), {"small": "2B", "large": "8B"})
    table = estimate([tmp_path / "run"], named).table("throughput")
    titles = [column.title for column in table.columns]
    rows = [dict(zip(titles, row, strict=True)) for row in table.rows]
    (row,) = (row for row in rows if row["batch size"] == batches.BATCH_SIZE and str(row["method"]).startswith("MAI"))
    seconds = float(str(row["two GPUs, s"]))
    assert seconds == pytest.approx(run.formula_s)
    # Its beginning and end are not full batches, so it takes longer, but not much.
    assert seconds <= run.simulated_s <= 1.1 * seconds

    per_document = importlib.import_module("capacity").cascade(lengths.Lengths("chartqa"), profiles, batches.BATCH_SIZE)
    assert 2500 * max(per_document.small, per_document.large) == pytest.approx(seconds)
    assert per_document.divided(2) == (pytest.approx(3600 * 2500 / seconds), 1)
    assert per_document.both(2) >= per_document.divided(2)[0]
