"""Runs on engines: several, one after the other, and one with an error of our own."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.logs import logged
from support.processes import scripts
from support.samples import sample

from lmms_eval_mai.engines.wrapper import EngineWrapper
from lmms_eval_mai.errors import SampleError
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.engines import Engines
from lmms_eval_mai.run.run import Run

cleared: Counter[str] = Counter()


class Counting(EngineWrapper):
    """Counts how often the caches of an engine are cleared."""

    async def clear_caches(self) -> None:
        cleared[self.side] += 1


def test_engines_start_once_and_serve_runs_of_all_modes(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {**scripts(tmp_path, "pope_s", 3), "journal": str(tmp_path / "journal")}

    def exits(run: Run) -> list[str]:
        def open_sample(doc_id: int) -> Any:
            return sample(doc_id=doc_id, task="pope_s")

        keys = [("pope_s", doc_id, 0) for doc_id in range(3)]
        return [trace.exit for trace in run.run_samples(keys, open_sample, {"pope_s": {}})]  # type: ignore[union-attr]

    with logged() as messages:
        engines = Engines(parse(arguments))
        engines.of_side = {side: Counting(engine) for side, engine in engines.of_side.items()}
        try:
            engines.clear_caches()
            engines.start(["small"])
            engines.clear_caches()
            assert cleared == {"small": 1}  # the other engine does not run yet
            engines.start()
            found = {}
            for mode in ("small", "large", "transfer", "cascade"):
                run = Run(engines, parse({**arguments, "mode": mode}))
                found[mode] = exits(run)
                assert run.totals.failures.count() == 0
                assert len(list((tmp_path / "journal").iterdir())) == 1
                run.complete(None)
        finally:
            engines.stop()
    assert found == {
        **{mode: [mode] * 3 for mode in ("small", "large", "transfer")},
        "cascade": ["agree_short", "agree_think", "transfer"],
    }
    assert [sum(f"{side} is ready" in text for text in messages) for side in ("small", "large")] == [1, 1]
    assert list((tmp_path / "journal").iterdir()) == []


def test_unexpected_error_fails_its_sample_and_says_how_to_report_it(tmp_path: Path) -> None:
    async def divide(sample: Any, pair: Any) -> Any:
        raise ZeroDivisionError("by 0")

    config = parse({**scripts(tmp_path, "pope_s", 1), "journal": "off"})
    run = Run(Engines(config), config, divide)
    try:
        run.begin({})
        with pytest.raises(SampleError, match=r"pope_x document 0: ZeroDivisionError: by 0\. .* --verbosity DEBUG"):
            run.submit(sample).result()
    finally:
        run.stop()
