"""Runs on engines that are up: a mode of the cascade on many samples, the same stage by stage, and the bound."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from lmms_eval_mai.bench.documents import Documents
from lmms_eval_mai.bench.planned import answer, prompts_of
from lmms_eval_mai.bench.rows import Level
from lmms_eval_mai.contract import Call, Engine, Prompt, Stage
from lmms_eval_mai.errors import MaiError, SampleError
from lmms_eval_mai.paper.cascade import MODES
from lmms_eval_mai.paper.sample import Sample, Trace
from lmms_eval_mai.paper.sample_run import Pair
from lmms_eval_mai.run.scheduler import run_samples
from lmms_eval_mai.run.session import MAX_OPEN_SAMPLES


async def run_mode(mode: str, engines: Sequence[Engine], documents: Documents, level: Level) -> list[Call]:
    """Run a mode on all documents. Returns all calls. Raises a `MaiError`, also if an exit is not as planned."""
    pair = Pair(engines[0], engines[-1])
    traces: dict[int, Trace] = {}

    async def run(sample: Sample) -> Trace:
        return await MODES[mode](sample, pair)

    await run_all(
        documents.count, documents.open, run, traces.__setitem__, MAX_OPEN_SAMPLES if level == "max" else level
    )
    if mode == "cascade" and documents.plan is not None:
        wrong = [number for number, trace in traces.items() if trace.exit != documents.plan.exits[number]]
        if wrong:
            raise MaiError(f"The exits of documents {wrong} are not as planned: report this as a bug.")
    return [call for number in sorted(traces) for call in traces[number].calls]


async def run_bound(engines: Sequence[Engine], documents: Documents) -> list[Call]:
    """Give each engine all its calls of the cascade at once. Returns the calls."""
    plan = documents.plan
    assert plan is not None, "rows.chosen refuses it"
    calls: list[Call] = []

    async def at_once(sample: Sample) -> list[Call]:
        return await answer(engines, await prompts_of(sample, plan))

    def done(number: int, made: list[Call]) -> None:
        calls.extend(made)

    await run_all(documents.count, documents.open, at_once, done, documents.count)
    return calls


async def run_staged(engines: Sequence[Engine], documents: Documents) -> list[Call]:
    """Make the calls of the cascade stage by stage, each stage for all documents: first all short answers, then all
    thinking, then all transfers. Returns the calls."""
    plan = documents.plan
    assert plan is not None, "rows.chosen refuses it"
    calls: list[Call] = []
    later: dict[Stage, list[Prompt]] = defaultdict(list)

    async def short(sample: Sample) -> list[Call]:
        prompts = await prompts_of(sample, plan)
        for prompt in prompts:
            later[prompt.key.stage].append(prompt)
        return await answer(engines, [prompt for prompt in prompts if prompt.key.stage == "short"])

    def done(number: int, made: list[Call]) -> None:
        calls.extend(made)

    await run_all(documents.count, documents.open, short, done, documents.count)
    for stage in ("think", "transfer"):
        calls += await answer(engines, later[stage])
    return calls


async def run_all(
    count: int,
    open_: Callable[[int], Sample],
    run: Callable[[Sample], Awaitable[Any]],
    done: Callable[[int, Any], None],
    max_open: int,
) -> None:
    """Run samples as an evaluation does. `done` gets each result. Raises the error of the first failed sample."""

    async def report(number: int, result: Any) -> bool:
        if isinstance(result, SampleError):
            raise result
        done(number, result)
        return True

    await run_samples(count, open_, run, report, max_open)
