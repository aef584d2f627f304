"""All rows, interleaved: on engines whose times are known, and on real vLLM."""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from support.engines import Running

from lmms_eval_mai.bench import rows, table
from lmms_eval_mai.bench.documents import Documents, DrawnSource
from lmms_eval_mai.bench.drawn import Charts
from lmms_eval_mai.bench.engines import Engines
from lmms_eval_mai.bench.lengths import Plan, make_plan
from lmms_eval_mai.bench.measure import Bench, Measurement, Result
from lmms_eval_mai.bench.rows import Level
from lmms_eval_mai.engines.base import Call, Engine, Prompt, Sampling
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.engines.wrapper import EngineWrapper
from lmms_eval_mai.errors import EngineStartError

pytestmark = pytest.mark.slow  # the prompts need lmms-eval's tasks, whose import takes seconds
ALL = ("large-r", "small-r", "full-rt", "mai", "bound")
CHARTS = DrawnSource(Charts.draw(6, 0.001))


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

    async def clear_caches(self) -> None:
        self.log.append(f"clear {self.side}")

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        assert sampling.ignore_eos
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.pause_s)
        call = await super().generate(prompt, sampling)
        self.now -= 1
        return dataclasses.replace(call, output_tokens=sampling.max_tokens)


def bench_of(names: tuple[str, ...], levels: tuple[Level, ...], plan: Callable[[int], Plan], repeats: int = 2) -> Bench:
    few, many = (Documents(CHARTS, count, plan(count), {"mode": "cascade"}) for count in (3, 6))
    return Bench(tuple(rows.cells(names, levels)), few, many, {}, 5, 32, repeats)


def measured(bench: Bench, build: Callable[[str], Engine], one_row: bool = False) -> tuple[Result, list[str]]:
    told: list[str] = []
    return asyncio.run(Measurement(bench, Engines(build, one_row), told.append).run()), told


def chartqa(count: int) -> Plan:
    return make_plan("chartqa", count)


def test_every_row_makes_its_planned_calls_in_each_repeat_and_every_second_repeat_is_in_the_opposite_order() -> None:
    log: list[str] = []
    bench = bench_of(ALL, (1, "max"), chartqa)
    result, told = measured(bench, lambda name: Counted(name.split()[0], log))
    cells = [(run.row, run.level) for run in result.runs]
    assert cells == [*bench.cells, *reversed(bench.cells)] and not result.failed and len(told) == len(cells)
    assert log.count("start small") == log.count("start large") == 2  # each alone and in the pair
    assert log.count("close small") == log.count("close large") == 2
    plan = bench.many.plan
    assert plan is not None
    expected = {
        "large-r": sum(plan.steps[n, "large", "think"].tokens for n in range(6)),
        "full-rt": sum(
            plan.steps[n, *key].tokens for n in range(6) for key in (("small", "think"), ("large", "transfer"))
        ),
        "mai": sum(plan.steps[n, *key].tokens for n in range(6) for key in plan.cascade_stages(n)),
    }
    found = {run.row: run.output_tokens for run in result.runs if run.level == "max"}
    assert {name: found[name] for name in expected} == expected and found["bound"] == found["mai"]


def test_no_more_documents_are_open_than_the_level_says() -> None:
    engines: dict[str, Counted] = {}

    def build(name: str) -> Engine:
        return engines.setdefault(name, Counted(name.split()[0], [], pause_s=0.05))

    measured(bench_of(("large-r",), (1,), chartqa), build)
    assert engines["large alone"].most == 1
    measured(bench_of(("large-r",), (4,), chartqa), build)
    assert 1 < engines["large alone"].most <= 4


def test_caches_are_cleared_before_each_run_and_on_a_gpu_the_engines_of_one_row_are_up() -> None:
    log: list[str] = []
    measured(bench_of(("large-r", "mai"), ("max",), chartqa), lambda name: Counted(name.split()[0], log), one_row=True)
    alone, pair = ["start large"], ["start small", "start large"]
    cleared = ["clear small", "clear large"]
    closed = ["close small", "close large"]
    first = [*alone, "close large", *pair, *closed, *alone, "clear large", "close large", *pair, *cleared]
    assert log == [*first, *cleared, *closed, *alone, "clear large", "close large"]


def test_a_row_that_fails_is_left_out_with_its_reason_and_the_others_go_on() -> None:
    class Broken(Counted):
        async def start(self) -> None:
            raise EngineStartError("There is no such GPU.")

    def build(name: str) -> Engine:
        return (Broken if name == "large alone" else Counted)(name.split()[0], [])

    result, told = measured(bench_of(("large-r", "mai"), ("max",), chartqa), build)
    assert [run.row for run in result.runs] == ["mai", "mai"]
    assert result.failed == {"large-r": "There is no such GPU."}
    assert told[0] == "large-r is left out: There is no such GPU."
    lines = table.lines(result)
    assert table.reference_ratio(lines[0], lines) is None  # large-r has no time


class Kept(EngineWrapper[Any]):
    """A running engine of the test session under another side. It is not stopped."""

    def __init__(self, engine: Any, side: str) -> None:
        super().__init__(engine)
        self._side = side

    @property
    def side(self) -> str:
        return self._side

    def validate(self) -> None:
        """Do nothing: it runs."""

    async def start(self) -> None:
        """Do nothing: it runs."""

    async def close(self) -> None:
        """Do nothing: other tests use it."""


def test_rows_on_real_vllm_have_the_planned_tokens_and_ratios(vllm: Running) -> None:
    def short(count: int) -> Plan:
        plan = make_plan("chartqa", count)
        steps = {key: dataclasses.replace(step, tokens=min(step.tokens, 9)) for key, step in plan.steps.items()}
        return dataclasses.replace(plan, steps=steps)

    bench = bench_of(("small-r", "mai", "bound"), (1, "max"), short, repeats=1)
    measurement = Measurement(bench, Engines(lambda name: Kept(vllm.engine, name.split()[0]), False), lambda line: None)
    result = vllm.loop.run(measurement.run())
    assert not result.failed and len(result.runs) == 5
    by_cell = {(run.row, run.level): run for run in result.runs}
    assert by_cell["small-r", 1].output_tokens == 3 * 9 and by_cell["small-r", "max"].output_tokens == 6 * 9
    assert by_cell["mai", "max"].output_tokens == by_cell["bound", "max"].output_tokens
    ratios = table.ratios(table.lines(result))
    assert set(ratios) == {
        "small-r / mai, one at a time",
        "small-r / mai, as many as fit",
        "mai / bound, as many as fit",
    }
    slower = by_cell["mai", "max"].seconds / by_cell["bound", "max"].seconds
    assert ratios["mai / bound, as many as fit"] == pytest.approx(slower)
