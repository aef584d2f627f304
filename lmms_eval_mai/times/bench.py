"""Measured wall time of methods on one pair of models, for `lmms-eval-mai bench` (Table 12, and more).

All rows answer the same documents. Each repeat runs every row once, and every second repeat in the opposite order. The
table has medians, and ratios of two rows with their intervals over the repeats.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pandas as pd

from lmms_eval_mai.contract import SIDES, Call, Engine, Side
from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.errors import ArgumentError, MaiError, SampleError
from lmms_eval_mai.paper.calls import Pair
from lmms_eval_mai.paper.cascade import MODES
from lmms_eval_mai.paper.confidence import FirstCheck, Verify
from lmms_eval_mai.paper.sample import Sample, Trace
from lmms_eval_mai.reports.report import Estimate, Of, Report, table
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.engines import clear_caches
from lmms_eval_mai.run.scheduler import run_samples
from lmms_eval_mai.statistics import mean
from lmms_eval_mai.times.documents import Documents, PlannedModel
from lmms_eval_mai.times.whole import run_whole

Level = int | Literal["max"]
"""Documents that are open at once. `max`: as many as a run opens."""
Cell = tuple[str, Level]
"""A row and a level."""
ONE = 1
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
"""vLLM's own speculation without a second model: it proposes what followed the same tokens before."""
WARM_UP = 8
"""Documents that are answered after the start of an engine and before the clock. One at a time: 2."""


@dataclass(frozen=True)
class Row:
    """One method."""

    title: str
    mode: str
    """A key of `MODES`. Without engines: the model of lmms-eval, which runs in a process of its own."""
    engines: tuple[str, ...] = ()
    """Names for `engine_of`."""
    levels: tuple[Level, ...] | None = None
    """The only levels that it has. None: all."""
    reference: str = "large-r"
    """The row whose time is divided by that of this row."""
    verify: Verify = "agreement"
    """The first check of a cascade."""


PAIR = ("small", "large")
ROWS: dict[str, Row] = {
    "large-r": Row("large R", "large", ("large alone",)),
    "small-r": Row("small R", "small", ("small alone",)),
    "full-rt": Row("Full RT", "transfer", PAIR),
    "mai": Row("MAI", "cascade", PAIR),
    "mai-confident": Row("MAI, verify=confidence", "cascade", PAIR, verify="confidence"),
    "vllm-ngram": Row("large R, vLLM's n-gram speculation", "large", ("large ngram",)),
    "hf": Row("large R, transformers", "large", ("large transformers",), (ONE,), "hf"),
    "hf-speculative": Row(
        "large R, transformers, small model as assistant", "large", ("large assisted",), (ONE,), "hf"
    ),
    "lmms-eval-vllm": Row("lmms-eval --model vllm, large model", "vllm", (), ("max",), "lmms-eval-vllm"),
    "lmms-eval-mai": Row("lmms-eval --model mai_cascade, mode=large", "mai_cascade", (), ("max",), "lmms-eval-vllm"),
}


def cells(names: str | None, concurrency: str) -> list[Cell]:
    """Return each row of `--rows` with each of its levels of `--concurrency`, level by level. Without names, rows that
    have none of the levels are left out. Raises `ArgumentError`."""
    rows = list(ROWS) if names is None else list(dict.fromkeys(name.strip() for name in names.split(",")))
    levels: list[Level] = []
    for part in concurrency.split(","):
        word = part.strip()
        if word != "max" and not (word.isdecimal() and int(word) > 0):
            raise ArgumentError(f"--concurrency {word} is invalid: expected numbers of at least 1, or max.")
        levels.append("max" if word == "max" else int(word))
    for name in rows:
        if name not in ROWS:
            raise ArgumentError(f"--rows {name} is unknown: choose from {', '.join(ROWS)}.{did_you_mean(name, ROWS)}")
        own = ROWS[name].levels
        if names is not None and own is not None and not set(own) & set(levels):
            shown = " or ".join(map(str, own))
            raise ArgumentError(f"--rows {name} needs --concurrency {shown}: add it, or leave the row out.")
    return [(name, level) for level in dict.fromkeys(levels) for name in rows if level in (ROWS[name].levels or levels)]


def engine_of(name: str, arguments: Mapping[str, Any], assistant_tokens: int) -> Engine:
    """Return an engine, not started. An engine that works alone has all cores and the whole memory, as in `mode=large`.
    Raises `ArgumentError`."""
    pair = parse(arguments)
    if name == "small":
        return build(pair.small, pair.large)
    if name == "large":
        return build(pair.large, pair.small)
    if name == "small alone":
        return build(parse({**arguments, "mode": "small"}).small)
    if name in ("large alone", "large ngram"):
        own: dict[str, Any] = {"large_speculative_config": str(NGRAM)} if name == "large ngram" else {}
        return build(parse({**arguments, "mode": "large", **own}).large)
    own = {"large_batch_size": 1}
    if name == "large assisted":
        own |= {"large_assistant_model": pair.small.model, "large_num_assistant_tokens": assistant_tokens}
    if "dtype" in pair.large.arguments:
        own["dtype"] = pair.large.arguments["dtype"]
    return build(parse({"mode": "large", "engine": "transformers", "large": pair.large.model, **own}).large)


@dataclass(frozen=True)
class Measured:
    """One run of one row."""

    row: str
    level: Level
    repeat: int
    documents: int
    seconds: float
    """Wall time without starts and stops of engines."""
    whole_s: float | None = None
    """Wall time of a process of lmms-eval, with its start and its end."""
    output_tokens: int | None = None
    proposed_tokens: int | None = None
    """Speculative decoding: drafted tokens. None: not reported."""
    accepted_tokens: int | None = None


@dataclass
class Measurement:
    """What is measured, the engines, and all runs so far. Engines stay up until the end; on a GPU, only those of one
    row are up."""

    cells: Sequence[Cell]
    single: Documents
    """The documents that are answered one at a time."""
    many: Documents
    repeats: int
    max_new_tokens: int
    """The limit of each answer in the rows that run lmms-eval."""
    include_path: str | None
    """A folder with more tasks, for lmms-eval."""
    build: Callable[[str], Engine]
    """Returns an engine by its name, not started."""
    one_row: bool
    tell: Callable[[str], None]
    first_check: FirstCheck = FirstCheck("confidence")  # noqa: RUF009 - frozen
    """That of the row `mai-confident`."""
    runs: list[Measured] = field(default_factory=list)
    starts: list[tuple[str, float]] = field(default_factory=list)
    """Name of an engine and seconds, for each start."""
    failed: dict[str, str] = field(default_factory=dict)
    """Row -> why it could not run, as a sentence."""
    complete: bool = False
    """Whether the measurement reached its end."""
    _running: dict[str, Engine] = field(default_factory=dict)

    @property
    def table(self) -> pd.DataFrame:
        """All runs so far, with the fields of `Measured`."""
        return pd.DataFrame(map(asdict, self.runs))

    async def run(self) -> None:
        """Measure all cells. A row that fails gets no further runs, and the others go on."""
        try:
            for repeat in range(1, self.repeats + 1):
                for name, level in self.cells[:: 1 if repeat % 2 else -1]:
                    if name in self.failed:
                        continue
                    try:
                        await self._measure(name, level, repeat)
                    except MaiError as error:
                        self.failed[name] = str(error)
                        self.tell(f"{name} gets no further runs: {error}")
                        await self._close(ROWS[name].engines)
            self.complete = True
        finally:
            await self._close(list(self._running))

    async def _measure(self, name: str, level: Level, repeat: int) -> None:
        row, title = ROWS[name], f"{ROWS[name].title}, {shown(level)}"
        documents = self.single if level == ONE else self.many
        if row.engines:
            if await self._started(row.engines):  # only then is there code to load; always before the clock
                self.tell(f"{title}: warm-up")
                await self._answer(row, level, documents.first(2 if level == ONE else WARM_UP))
            for engine in row.engines:
                await clear_caches(self._running[engine])
            began = time.perf_counter()
            calls = await self._answer(row, level, documents)
            seconds = time.perf_counter() - began
            tokens = sum(call.output_tokens for call in calls)
            drafts = [
                (call.proposed_tokens, call.accepted_tokens or 0) for call in calls if call.proposed_tokens is not None
            ]
            proposed, accepted = (sum(column) for column in zip(*drafts, strict=True)) if drafts else (None, None)
            found = Measured(name, level, repeat, documents.count, seconds, None, tokens, proposed, accepted)
        else:
            self.tell(f"{title}: started, in a process of its own")
            await self._started(())
            began = time.perf_counter()
            large = parse({**documents.arguments, "mode": "large"}).large
            task = (documents.source.name, self.include_path, documents.count, self.max_new_tokens)
            seconds = await run_whole(row.mode, large, *task)
            found = Measured(name, level, repeat, documents.count, seconds, time.perf_counter() - began)
        self.runs.append(found)
        self.tell(f"{title}, run {repeat} of {self.repeats}: {found.seconds:.1f} s")

    async def _answer(self, row: Row, level: Level, documents: Documents) -> list[Call]:
        """Answer all documents with the running engines of a row, as an evaluation does. Returns all calls. Raises a
        `MaiError`."""
        sides: tuple[Side, ...] = SIDES if len(row.engines) > 1 else ("small",) if row.mode == "small" else ("large",)
        engines = {side: self._running[name] for side, name in zip(sides, row.engines, strict=True)}
        plan = documents.plan
        models = engines if plan is None else {side: PlannedModel(engine, plan) for side, engine in engines.items()}
        check = FirstCheck() if row.verify == "agreement" else self.first_check
        pair = Pair(models, first_check=check)
        calls: list[Call] = []

        async def run(sample: Sample) -> Trace:
            return await MODES[row.mode](sample, pair)

        async def report(number: int, trace: Trace | SampleError) -> bool:
            if isinstance(trace, SampleError):
                raise trace
            calls.extend(trace.calls)
            return True

        limit = parse(documents.arguments).max_open_samples if level == "max" else level
        await run_samples(range(documents.count), documents.open, run, report, limit)
        return calls

    async def _started(self, names: Sequence[str]) -> bool:
        """Start those of these engines that do not run. Returns whether there was one. Raises a `MaiError`."""
        if self.one_row:
            await self._close([name for name in self._running if name not in names])
        missing = [name for name in names if name not in self._running]
        for name in missing:
            engine = self.build(name)
            began = time.perf_counter()
            try:
                await engine.start()
            except BaseException:
                await engine.close()
                raise
            self.starts.append((name, time.perf_counter() - began))
            self._running[name] = engine
        return bool(missing)

    async def _close(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self._running:
                await self._running.pop(name).close()


def shown(level: Level) -> str:
    return {ONE: "one at a time", "max": "as many as fit"}.get(level, f"{level} at a time")


# --- the table ---

NOTES = (
    "Measured wall time: medians of interleaved runs, without the starts of the engines.",
    "Reference / row and row / MAI: ratios of the times at the same level. The reference is large R; of the assistant, "
    "transformers alone; of mode=large, lmms-eval's own vllm. Each ratio is the geometric mean over the repeats that "
    "have both rows, with the 95% interval of Student's t distribution of its logarithm. It needs two repeats, and is "
    "wide with few.",
    '"With starts" adds the starts of the engines, or is the whole process of lmms-eval.',
)


def report(measurement: Measurement) -> Report:
    """Return the table of all runs, and the sentences about rows that failed. There must be a run."""
    runs = measurement.table
    gaps = [] if measurement.complete else ["The measurement was stopped, so some rows have fewer runs than others."]
    for name, reason in measurement.failed.items():
        state = "has only the runs before its error" if (runs["row"] == name).any() else "has no runs"
        gaps.append(f"{name} {state}: {reason}")
    starts = pd.DataFrame(measurement.starts, columns=["engine", "seconds"]).groupby("engine")["seconds"].median()
    levels = runs["level"].unique()
    cells = [(name, level, runs[(runs["row"] == name) & (runs["level"] == level)]) for level in levels for name in ROWS]

    def with_starts_s(name: str, one: pd.DataFrame) -> float:
        own = starts[starts.index.isin(ROWS[name].engines)].sum()
        return float(one["whole_s"].astype(float).fillna(one["seconds"]).median() + own)

    def accepted(one: pd.DataFrame) -> float | None:
        proposed = one["proposed_tokens"].astype(float).sum()
        return 100 * float(one["accepted_tokens"].astype(float).sum() / proposed) if proposed else None

    columns: tuple[Of[tuple[str, Level, pd.DataFrame]], ...] = (
        Of("row", "text", 0, lambda cell: ROWS[cell[0]].title),
        Of("open documents", "text", 0, lambda cell: shown(cell[1])),
        Of("documents", "count", 0, lambda cell: int(cell[2]["documents"].iloc[0])),
        Of("repeats", "count", 0, lambda cell: len(cell[2])),
        Of("seconds", "number", 2, lambda cell: cell[2]["seconds"].median()),
        Of("all runs", "text", 0, lambda cell: ", ".join(f"{seconds:.2f}" for seconds in cell[2]["seconds"])),
        Of("s per document", "number", 3, lambda cell: (cell[2]["seconds"] / cell[2]["documents"]).median()),
        Of("reference / row", "number", 2, lambda cell: ratio(runs, ROWS[cell[0]].reference, cell[0], cell[1])),
        Of("row / MAI", "number", 2, lambda cell: ratio(runs, cell[0], "mai", cell[1])),
        Of("with starts, s", "number", 1, lambda cell: with_starts_s(cell[0], cell[2])),
        Of("accepted drafts, %", "number", 1, lambda cell: accepted(cell[2])),
    )
    rows = [cell for cell in cells if len(cell[2])]
    return Report((), tuple(table("bench", "Measured time of the methods", columns, rows, NOTES)), (), (), tuple(gaps))


def ratio(runs: pd.DataFrame, above: str, below: str, level: Level) -> Estimate | None:
    """Return the time of one row divided by that of another: the geometric mean over the repeats that have both, with
    its interval; `n` is their number. None: there is none, or the rows are the same."""
    both = runs[runs["level"] == level].pivot(index="repeat", columns="row", values="seconds").reindex(
        columns=[above, below]).dropna()  # fmt: skip
    if above == below or both.empty:
        return None
    found = mean([math.log(one) for one in both[above] / both[below]])
    low, high = (None if math.isnan(end) else math.exp(end) for end in (found.low, found.high))
    return Estimate(math.exp(found.value), found.n, low, high)
