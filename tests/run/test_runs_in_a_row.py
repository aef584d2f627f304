"""Several runs, one after the other, on the same engines."""

from collections import Counter
from pathlib import Path
from typing import Any

from support.logs import logged
from support.reproduce import scripts
from support.samples import sample

from lmms_eval_mai.engines.wrapper import EngineWrapper
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.engines import Engines
from lmms_eval_mai.run.run import Run

cleared: Counter[str] = Counter()


class Counting(EngineWrapper):
    """Counts how often the caches of an engine are cleared."""

    async def clear_caches(self) -> None:
        cleared[self.side] += 1


def test_engines_start_once_and_serve_runs_of_all_modes(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {**scripts(tmp_path, 3), "journal": str(tmp_path / "journal")}

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
                assert run.totals.meter.failed() == 0
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
