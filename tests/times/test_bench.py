"""All rows, interleaved: on engines whose times are known, and on real vLLM."""

import asyncio
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.engines import Running

from lmms_eval_mai.contract import Call, Engine, Prompt, Sampling
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.errors import EngineStartError
from lmms_eval_mai.harness.documents import TaskDocuments
from lmms_eval_mai.times import bench
from lmms_eval_mai.times.bench import Measurement, cells, engine_of
from lmms_eval_mai.times.documents import CHARTS, Documents, Plan, Step, make_plan, write_charts

pytestmark = pytest.mark.slow  # the prompts need lmms-eval's tasks, whose import takes seconds


@pytest.fixture(scope="module")
def charts(tmp_path_factory: pytest.TempPathFactory) -> TaskDocuments:
    folder = tmp_path_factory.mktemp("charts")
    write_charts(folder, 6, 0.001)
    return TaskDocuments(CHARTS, None, {}, str(folder))


class Counted(ScriptedEngine):
    """Decodes as many tokens as it is asked for, and records its starts, its calls and how many ran at once."""

    def __init__(self, side: str, log: list[str], pause_s: float = 0) -> None:
        super().__init__(side, lambda prompt: Answer("model's own text"), ScriptedOptions(time_scale=0))
        self.log, self.pause_s, self.now, self.most = log, pause_s, 0, 0

    async def start(self) -> None:
        self.log.append(f"start {self.side}")
        await super().start()

    async def close(self) -> None:
        self.log.append(f"close {self.side}")
        await super().close()

    @property
    def llm(self) -> "Counted":
        return self  # vLLM's engine, whose caches are cleared

    async def reset_prefix_cache(self) -> None:
        self.log.append(f"clear {self.side}")

    async def reset_mm_cache(self) -> None: ...

    async def reset_encoder_cache(self) -> None: ...

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        assert sampling.ignore_eos
        self.log.append(f"call {self.side}")
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.pause_s)
        call = await super().generate(prompt, sampling)
        self.now -= 1
        return dataclasses.replace(call, output_tokens=sampling.max_tokens)


def bench_of(
    charts: TaskDocuments,
    names: str,
    levels: str,
    build: Callable[[str], Engine],
    plan: Callable[[int], Plan] | None = None,
    repeats: int = 2,
    one_row: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> Measurement:
    plan = plan or functools.partial(make_plan, "chartqa")
    few, many = (Documents(charts, count, plan(count), {"mode": "cascade"}) for count in (3, 6))
    return Measurement(cells(names, levels), few, many, repeats, 32, None, build, one_row, tell)


def measured(bench: Measurement) -> Measurement:
    asyncio.run(bench.run())
    return bench


def test_every_row_makes_its_planned_calls_in_each_repeat_and_every_second_repeat_is_in_the_opposite_order(
    charts: TaskDocuments,
) -> None:
    log: list[str] = []
    rows = "large-r,small-r,full-rt,mai,mai-confident"
    result = measured(bench_of(charts, rows, "1,max", lambda name: Counted(name.split()[0], log)))
    made = [(run.row, run.level) for run in result.runs]
    assert made == [*result.cells, *reversed(result.cells)] and not result.failed
    assert log.count("start small") == log.count("start large") == 2  # each alone and in the pair
    assert log.count("close small") == log.count("close large") == 2
    plan = result.many.plan
    assert plan is not None and plan.exits == (*["agree_short"] * 2, "transfer", *["agree_short"] * 3)
    short, think, transfer = (
        {side: [plan.steps[n, side, stage].tokens for n in range(6)] for side in sides}  # type: ignore[index]
        for stage, sides in (("short", ("small", "large")), ("think", ("small", "large")), ("transfer", ("large",)))
    )
    found = {run.row: run.output_tokens for run in result.runs if run.level == "max"}
    assert found == {
        "large-r": sum(think["large"]),
        "small-r": sum(think["small"]),
        "full-rt": sum(think["small"]) + sum(transfer["large"]),
        "mai": sum(short["small"]) + sum(short["large"]) + think["small"][2] + transfer["large"][2],
        "mai-confident": sum(short["large"]) + think["small"][2] + transfer["large"][2],  # the exits of MAI
    }


@pytest.mark.parametrize(("level", "least", "most"), [("1", 1, 1), ("4", 2, 4)])
def test_no_more_documents_are_open_than_the_level_says(
    charts: TaskDocuments, level: str, least: int, most: int
) -> None:
    engine = Counted("large", [], pause_s=0.05)
    measured(bench_of(charts, "large-r", level, lambda name: engine))
    assert least <= engine.most <= most


def events(log: list[str]) -> list[str]:
    """Return the events in their order, with one `calls` for all calls between two others."""
    kinds = ["calls" if event.startswith("call ") else event for event in log]
    return [event for number, event in enumerate(kinds) if event != "calls" or kinds[number - 1 : number] != ["calls"]]


@pytest.mark.parametrize("one_row", [True, False])
def test_each_start_of_an_engine_is_followed_by_a_warm_up_before_the_clock(
    charts: TaskDocuments, one_row: bool
) -> None:
    """The calls after a start and before caches are cleared are the warm-up; the calls after that are on the clock."""
    log: list[str] = []
    level = "max" if one_row else "1"
    measured(bench_of(charts, "large-r,mai", level, lambda name: Counted(name.split()[0], log), one_row=one_row))
    large = ["start large", "calls", "clear large", "calls"]
    clear = ["clear small", "clear large", "calls"]
    pair = ["start small", "start large", "calls", *clear]
    closed = ["close small", "close large"]
    # The second repeat is in the opposite order, so the engines of MAI stay up, and are not warmed up again.
    if one_row:  # on a GPU
        assert events(log) == [*large, "close large", *pair, *clear, *closed, *large, "close large"]
    else:
        assert events(log) == [*large, *pair, *clear, "clear large", "calls", "close large", *closed]


def test_a_row_that_fails_is_left_out_with_its_reason_and_the_others_go_on(charts: TaskDocuments) -> None:
    class Broken(Counted):
        async def start(self) -> None:
            raise EngineStartError("There is no such GPU.")

    def build(name: str) -> Engine:
        return (Broken if name == "large alone" else Counted)(name.split()[0], [])

    told: list[str] = []
    result = measured(bench_of(charts, "large-r,mai", "max", build, tell=told.append))
    assert [run.row for run in result.runs] == ["mai", "mai"]
    assert result.failed == {"large-r": "There is no such GPU."}
    assert told[:2] == [
        "large-r gets no further runs: There is no such GPU.",
        "MAI, as many as fit: warm-up",
    ]
    assert told[-1].startswith("MAI, as many as fit, run 2 of 2: ")
    assert bench.report(result).gaps == ("large-r has no runs: There is no such GPU.",)


def test_a_measurement_that_is_stopped_keeps_the_runs_that_were_finished_and_stops_its_engines(
    charts: TaskDocuments,
) -> None:
    log: list[str] = []

    async def stopped() -> Measurement:
        first_run = asyncio.Event()
        measurement = bench_of(
            charts,
            "large-r,small-r",
            "1",
            lambda name: Counted(name.split()[0], log, pause_s=0.05),
            tell=lambda line: first_run.set() if "run 1 of 2" in line else None,
        )
        task = asyncio.ensure_future(measurement.run())
        await first_run.wait()
        await asyncio.sleep(0)  # the next row starts its engine
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return measurement

    result = asyncio.run(stopped())
    assert [run.row for run in result.runs] == ["large-r"] and not result.failed and not result.complete
    assert sum(event.startswith("close") for event in log) == sum(event.startswith("start") for event in log)


class Kept:
    """A running engine of the test session. It is neither started nor stopped."""

    def __init__(self, engine: Any) -> None:
        self.description, self.generate, self.llm = engine.description, engine.generate, engine.llm
        self.count_tokens, self.truncate_thinking = engine.count_tokens, engine.truncate_thinking

    async def start(self) -> None: ...

    async def close(self) -> None: ...


def test_rows_that_draft_tokens_report_the_share_that_was_accepted(
    vllm: Running, tiny_pair: tuple[Path, Path], charts: TaskDocuments
) -> None:
    small, large = map(str, tiny_pair)
    arguments = {"small": large, "large": small, "dtype": "float32"}  # the running engine has the smaller checkpoint

    def plan(count: int) -> Plan:
        long = make_plan("chartqa", count)
        return dataclasses.replace(long, steps={key: Step(96, step.text) for key, step in long.steps.items()})

    def build(name: str) -> Engine:
        return Kept(vllm.engine) if name == "large alone" else engine_of(name, arguments, 5)

    result = bench_of(charts, "large-r,vllm-ngram,hf,hf-speculative", "1", build, plan, repeats=1)
    vllm.loop.run(result.run())
    assert not result.failed
    assert {run.output_tokens for run in result.runs} == {3 * 96}
    drafts = {run.row: (run.accepted_tokens, run.proposed_tokens) for run in result.runs}
    assert drafts["large-r"] == drafts["hf"] == (None, None)
    for row in ("vllm-ngram", "hf-speculative"):
        accepted, proposed = drafts[row]
        assert accepted is not None and proposed is not None and accepted <= proposed > 0
    assert drafts["vllm-ngram"][0]
