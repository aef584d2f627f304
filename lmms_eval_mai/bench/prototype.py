"""The paper's prototype (Appendix B.4): each stage starts its own engines in new processes and stops them at its end.

Stage 1 has both models at once.
"""

import asyncio
import multiprocessing
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loguru import logger

from lmms_eval_mai.bench.documents import Documents
from lmms_eval_mai.bench.engines import config_of, planned
from lmms_eval_mai.bench.pair import run_all
from lmms_eval_mai.bench.planned import answer, prompts_of
from lmms_eval_mai.bench.rows import BATCH
from lmms_eval_mai.contract import Side, Stage
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.paper.sample import Sample

STAGES: dict[Stage, tuple[Side, ...]] = {"short": ("small", "large"), "think": ("small",), "transfer": ("large",)}


@dataclass(frozen=True)
class StageRun:
    """One stage on one engine."""

    side: Side
    stage: Stage
    documents: Documents
    arguments: Mapping[str, Any]


async def run_prototype(documents: Documents, arguments: Mapping[str, Any]) -> float:
    """Run all documents stage by stage, with new engines in new processes for each stage. Returns the seconds in which
    the engines answered; the rest of the time is for starts and stops. Raises `MaiError`."""
    spawn = multiprocessing.get_context("spawn")
    answering_s = 0.0
    for stage, sides in STAGES.items():
        seconds = spawn.SimpleQueue()
        runs = [StageRun(side, stage, documents, arguments) for side in sides]
        children = [spawn.Process(target=stage_process, args=(run, seconds)) for run in runs]
        for child in children:
            child.start()
        try:
            for child in children:
                await asyncio.to_thread(child.join)
        finally:
            for child in children:
                child.terminate()
        if any(child.exitcode for child in children):
            raise MaiError(f"A process of the stage {stage} failed. Its error is above.")
        answering_s += max(seconds.get() for _ in children)
    return answering_s


def stage_process(run: StageRun, seconds: Any) -> None:
    """Run one stage. The main function of a child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # after Ctrl-C, the parent ends this process
    logger.remove()
    logger.add(sys.stderr, level="WARNING", format="{message}")
    try:
        seconds.put(asyncio.run(run_stage(run)))
    except MaiError as error:
        sys.exit(f"lmms-eval-mai: {error}")


async def run_stage(run: StageRun) -> float:
    """Start an engine, make its calls of one stage and stop it. Returns the seconds spent answering. Raises
    `MaiError`."""
    plan = run.documents.plan
    assert plan is not None, "rows.chosen refuses it"
    wanted = (run.side, run.stage)
    numbers = [number for number in range(run.documents.count) if wanted in plan.cascade_stages(number)]
    config, other = config_of(run.side, run.arguments, 1)
    engine = build(config, other if run.stage == "short" else None)
    engines = planned([engine], plan)

    async def call(sample: Sample) -> None:
        await answer(engines, [one for one in await prompts_of(sample, plan) if one.key.stage == run.stage])

    await engine.start()
    try:
        began = time.perf_counter()
        await run_all(
            len(numbers), lambda index: run.documents.open(numbers[index]), call, lambda *_: None, max_open=BATCH
        )
        return time.perf_counter() - began
    finally:
        await engine.close()
