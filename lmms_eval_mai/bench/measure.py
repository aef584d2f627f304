"""Measures all rows, interleaved: each repeat runs every row once, and every second repeat in the opposite order."""

import functools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.bench.documents import Documents
from lmms_eval_mai.bench.engines import Engines, planned
from lmms_eval_mai.bench.pair import run_bound, run_mode, run_staged
from lmms_eval_mai.bench.prototype import run_prototype
from lmms_eval_mai.bench.rows import ONE, PERSISTENT, ROWS, Level, Row
from lmms_eval_mai.bench.whole import run_whole
from lmms_eval_mai.contract import Call
from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.run.config import parse

Tell = Callable[[str], None]
Cell = tuple[str, Level]


@dataclass(frozen=True)
class Measured:
    """One run of one row."""

    row: str
    level: Level
    documents: int
    seconds: float
    """Wall time without starts and stops of engines. Of the prototype: the sum over its stages."""
    whole_s: float | None
    """Wall time with all starts and stops, for lmms-eval's process and the prototype. None: the engines stay up."""
    output_tokens: int | None = None
    proposed_tokens: int | None = None
    """Speculative decoding: drafted tokens. None: not reported."""
    accepted_tokens: int | None = None


@dataclass(frozen=True)
class Bench:
    """Everything that is measured."""

    cells: tuple[Cell, ...]
    single: Documents
    """The documents that are answered one at a time."""
    many: Documents
    arguments: Mapping[str, Any]
    assistant_tokens: int
    max_new_tokens: int
    """The limit of each answer in the rows that run lmms-eval."""
    repeats: int


@dataclass(frozen=True)
class Result:
    """All runs, the seconds of each start of an engine, and the rows that could not run."""

    runs: tuple[Measured, ...]
    start_s: Mapping[str, Sequence[float]]
    failed: Mapping[str, str]
    """Row -> the reason, as a sentence."""
    complete: bool = True
    """Whether the measurement reached its end."""


class Measurement:
    """The state of one measurement."""

    def __init__(self, bench: Bench, engines: Engines, tell: Tell) -> None:
        self._bench, self._engines, self._tell = bench, engines, tell
        self._failed: dict[str, str] = {}
        self._runs: list[Measured] = []
        self._complete = False

    def result(self) -> Result:
        """Return all runs so far."""
        return Result(tuple(self._runs), self._engines.start_s, self._failed, self._complete)

    async def run(self) -> None:
        """Measure all cells. A row that fails gets no further runs, and the others go on."""
        try:
            await self._each(self._bench.cells, self._warm_up)
            for repeat in range(1, self._bench.repeats + 1):
                cells = self._bench.cells if repeat % 2 == 1 else tuple(reversed(self._bench.cells))
                await self._each(cells, functools.partial(self._measure, repeat))
            self._complete = True
        finally:
            await self._engines.close()

    async def _each(self, cells: Sequence[Cell], work: Callable[[Cell], Awaitable[None]]) -> None:
        for cell in cells:
            if cell[0] in self._failed:
                continue
            try:
                await work(cell)
            except MaiError as error:
                self._failed[cell[0]] = str(error)
                self._tell(f"{cell[0]} gets no further runs: {error}")
                await self._engines.forget(ROWS[cell[0]].engines)

    async def _warm_up(self, cell: Cell) -> None:
        """Start the engines of a cell and answer two documents, so that all code is loaded."""
        name, level = cell
        if ROWS[name].kind in PERSISTENT:
            self._tell(f"{titled(cell)}: warm-up")
            await self._calls(ROWS[name], level, self._documents(level).first(2))

    async def _measure(self, repeat: int, cell: Cell) -> None:
        name, level = cell
        row, documents = ROWS[name], self._documents(level)
        if row.kind in PERSISTENT:
            for engine in await self._engines.get(row.engines):
                await engine.clear_caches()
            began = time.perf_counter()
            calls = await self._calls(row, level, documents)
            found = _measured(cell, documents, time.perf_counter() - began, calls)
        else:
            self._tell(f"{titled(cell)}: started, in processes of its own")
            await self._engines.make_room()
            began = time.perf_counter()
            seconds = await self._process(row, documents)
            found = Measured(name, level, documents.count, seconds, time.perf_counter() - began)
        self._runs.append(found)
        self._tell(f"{titled(cell)}, run {repeat} of {self._bench.repeats}: {found.seconds:.1f} s")

    async def _calls(self, row: Row, level: Level, documents: Documents) -> list[Call]:
        engines = planned(await self._engines.get(row.engines), documents.plan)
        if row.kind == "bound":
            return await run_bound(engines, documents)
        if row.kind == "staged":
            return await run_staged(engines, documents)
        return await run_mode(row.mode, engines, documents, level)

    async def _process(self, row: Row, documents: Documents) -> float:
        if row.kind == "prototype":
            return await run_prototype(documents, self._bench.arguments)
        large = parse({**self._bench.arguments, "mode": "large"}).large
        return await run_whole(row.mode, large, documents, self._bench.max_new_tokens)

    def _documents(self, level: Level) -> Documents:
        return self._bench.single if level == ONE else self._bench.many


def _measured(cell: Cell, documents: Documents, seconds: float, calls: Sequence[Call]) -> Measured:
    drafted = [call for call in calls if call.proposed_tokens is not None]
    return Measured(
        *cell,
        documents.count,
        seconds,
        None,
        sum(call.output_tokens for call in calls),
        sum(call.proposed_tokens or 0 for call in drafted) if drafted else None,
        sum(call.accepted_tokens or 0 for call in drafted) if drafted else None,
    )


def titled(cell: Cell) -> str:
    """Return a cell as text."""
    name, level = cell
    return f"{ROWS[name].title}, {shown(level)}"


def shown(level: Level) -> str:
    """Return a level as text."""
    return {ONE: "one at a time", "max": "as many as fit"}.get(level, f"{level} at a time")
