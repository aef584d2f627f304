"""All rows, interleaved: on engines whose times are known, and on real vLLM."""

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.engines import Running

from lmms_eval_mai.bench import rows, table
from lmms_eval_mai.bench.documents import Documents, DrawnSource
from lmms_eval_mai.bench.drawn import Charts
from lmms_eval_mai.bench.engines import Engines, engine_of
from lmms_eval_mai.bench.lengths import Plan, Step, make_plan
from lmms_eval_mai.bench.measure import Bench, Measurement, Result
from lmms_eval_mai.bench.rows import Level
from lmms_eval_mai.contract import Call, Engine, Prompt, Sampling
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.engines.wrapper import EngineWrapper
from lmms_eval_mai.errors import EngineStartError

pytestmark = pytest.mark.slow  # the prompts need lmms-eval's tasks, whose import takes seconds
ALL = ("large-r", "small-r", "full-rt", "mai", "staged", "bound")
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
    measurement = Measurement(bench, Engines(build, one_row), told.append)
    asyncio.run(measurement.run())
    return measurement.result(), told


def chartqa(count: int) -> Plan:
    return make_plan("chartqa", count)


def all_transfer(count: int) -> Plan:
    """Return the plan of documents that all end with the transfer."""
    plan = make_plan("chartqa", 200)
    chosen = [number for number, exit in enumerate(plan.exits) if exit == "transfer"][:count]
    steps = {(chosen.index(number), *key): step for (number, *key), step in plan.steps.items() if number in chosen}
    return dataclasses.replace(plan, exits=("transfer",) * count, steps=steps)


def test_every_row_makes_its_planned_calls_in_each_repeat_and_every_second_repeat_is_in_the_opposite_order() -> None:
    log: list[str] = []
    bench = bench_of(ALL, (1, "max"), chartqa)
    result, _ = measured(bench, lambda name: Counted(name.split()[0], log))
    cells = [(run.row, run.level) for run in result.runs]
    assert cells == [*bench.cells, *reversed(bench.cells)] and not result.failed
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
    assert {name: found[name] for name in expected} == expected and found["bound"] == found["staged"] == found["mai"]


def test_the_row_staged_begins_a_stage_when_all_calls_of_the_stage_before_have_ended() -> None:
    events: list[tuple[str, str]] = []

    class Staged(Counted):
        async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
            events.append(("begin", prompt.key.stage))
            call = await super().generate(prompt, sampling)
            events.append(("end", prompt.key.stage))
            return call

    def build(name: str) -> Engine:
        return Staged(name, [], pause_s=0.01 if name == "small" else 0.05)

    bench = bench_of(("staged",), ("max",), chartqa, repeats=1)
    measured(dataclasses.replace(bench, many=dataclasses.replace(bench.many, plan=all_transfer(6))), build)
    run = events[2 * 4 * 2 :]  # the warm-up has two documents of four calls
    last = max(number for number, event in enumerate(run) if event == ("end", "short"))
    assert run.index(("begin", "think")) > last
    assert run.index(("begin", "transfer")) > max(n for n, event in enumerate(run) if event == ("end", "think"))
    assert run.count(("end", "short")) == 12 and run.count(("end", "think")) == run.count(("end", "transfer")) == 6


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
    assert told[:2] == [
        "large R, as many as fit: warm-up",
        "large-r gets no further runs: There is no such GPU.",
    ]
    assert told[-1].startswith("MAI, as many as fit, run 2 of 2: ")
    lines = table.lines(result)
    assert table.reference_ratio(lines[0], lines) is None  # large-r has no time


def test_a_measurement_that_is_stopped_keeps_the_runs_that_were_finished_and_stops_its_engines() -> None:
    log: list[str] = []
    bench = bench_of(("large-r", "small-r"), (1,), chartqa)
    engines = Engines(lambda name: Counted(name.split()[0], log, pause_s=0.05), one_row=False)

    async def stopped() -> Result:
        first_run = asyncio.Event()
        measurement = Measurement(bench, engines, lambda line: first_run.set() if "run 1 of 2" in line else None)
        task = asyncio.ensure_future(measurement.run())
        await first_run.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return measurement.result()

    result = asyncio.run(stopped())
    assert [run.row for run in result.runs] == ["large-r"] and not result.failed and not result.complete
    assert {"close large", "close small"} <= set(log)


class Kept(EngineWrapper):
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

    bench = bench_of(("small-r", "mai", "staged", "bound"), (1, "max"), short, repeats=1)
    measurement = Measurement(bench, Engines(lambda name: Kept(vllm.engine, name.split()[0]), False), lambda line: None)
    vllm.loop.run(measurement.run())
    result = measurement.result()
    assert not result.failed and result.complete and len(result.runs) == 6
    by_cell = {(run.row, run.level): run for run in result.runs}
    assert by_cell["small-r", 1].output_tokens == 3 * 9 and by_cell["small-r", "max"].output_tokens == 6 * 9
    assert by_cell["mai", "max"].output_tokens == by_cell["bound", "max"].output_tokens
    ratios = table.ratios(table.lines(result))
    assert set(ratios) == {
        "small-r / mai, one at a time",
        "small-r / mai, as many as fit",
        "staged / mai, as many as fit",
        "mai / bound, as many as fit",
    }
    slower = by_cell["mai", "max"].seconds / by_cell["bound", "max"].seconds
    assert ratios["mai / bound, as many as fit"] == pytest.approx(slower)


def test_rows_that_draft_tokens_report_the_share_that_was_accepted(vllm: Running, tiny_pair: tuple[Path, Path]) -> None:
    small, large = map(str, tiny_pair)
    arguments = {"small": large, "large": small, "dtype": "float32"}  # the running engine has the smaller checkpoint

    def plan(count: int) -> Plan:
        long = make_plan("chartqa", count)
        return dataclasses.replace(long, steps={key: Step(96, step.text) for key, step in long.steps.items()})

    bench = bench_of(("large-r", "vllm-ngram", "hf", "hf-speculative"), (1,), plan, repeats=1)

    def build(name: str) -> Engine:
        return Kept(vllm.engine, "large") if name == "large alone" else engine_of(name, arguments, 5)

    measurement = Measurement(bench, Engines(build, one_row=False), lambda line: None)
    vllm.loop.run(measurement.run())
    result = measurement.result()
    assert not result.failed
    assert {run.output_tokens for run in result.runs} == {3 * 96}
    shares = {line.row: line.acceptance for line in table.lines(result)}
    assert shares["large-r"] is shares["hf"] is None
    assert shares["vllm-ngram"] is not None and 0 < shares["vllm-ngram"] <= 1
    assert shares["hf-speculative"] is not None and 0 <= shares["hf-speculative"] <= 1
