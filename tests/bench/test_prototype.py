"""The paper's prototype: the calls of one stage on an engine of its own."""

import asyncio
import json
from pathlib import Path

import pytest

from lmms_eval_mai.bench.documents import Documents, DrawnSource
from lmms_eval_mai.bench.drawn import TASK, Charts
from lmms_eval_mai.bench.lengths import make_plan
from lmms_eval_mai.bench.prototype import STAGES, StageRun, run_stage
from lmms_eval_mai.contract import Side, Stage
from lmms_eval_mai.errors import MaiError

pytestmark = pytest.mark.slow  # the prompts need lmms-eval's tasks, whose import takes seconds
COUNT = 6


@pytest.mark.parametrize(("side", "stage"), [(side, stage) for stage, sides in STAGES.items() for side in sides])
def test_a_stage_makes_all_its_planned_calls_and_no_others(tmp_path: Path, side: Side, stage: Stage) -> None:
    plan = make_plan("chartqa", COUNT)
    wanted = [number for number in range(COUNT) if (side, stage) in plan.cascade_stages(number)]
    tokens = {number: plan.steps[number, side, stage].tokens for number in wanted}
    script = tmp_path / "script.jsonl"
    arguments = {"engine": "scripted", "small": str(script), "large": str(script), "time_scale": 0}
    run = StageRun(side, stage, Documents(DrawnSource(Charts.draw(COUNT, 0.001)), COUNT, plan, arguments), arguments)

    def answer() -> float:
        records = [
            {"task": TASK, "doc_id": number, "stage": stage, "text": "x", "output_tokens": count}
            for number, count in tokens.items()
        ]
        script.write_text("\n".join(map(json.dumps, records)))
        return asyncio.run(run_stage(run))

    assert wanted and answer() >= 0  # a call that is not in the script would be an error
    for number in wanted:
        tokens[number] += 1  # the call is noticed, so it is made
        with pytest.raises(MaiError, match=f"document {number}, .* decoded"):
            answer()
        tokens[number] -= 1
