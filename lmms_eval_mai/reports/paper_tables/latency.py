"""The time of finished runs, computed from profiles: Table 11 with Eq. 27, and by model and stage."""

from collections.abc import Iterator
from dataclasses import dataclass

from lmms_eval_mai.contract import Side
from lmms_eval_mai.reports import paper_numbers, paper_profiles
from lmms_eval_mai.reports.call_times import Profiles, StageTime, stage_times, timed_runs
from lmms_eval_mai.reports.estimates import with_paper
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.paper_numbers import PaperNumber, benchmark_name
from lmms_eval_mai.reports.records import Run
from lmms_eval_mai.reports.report import OF_RUN, Cell, Column, Estimate, Table

ROWS = {"transfer": "Full RT", "cascade": "MAI"}
"""Mode -> its row of Table 11."""
PAIR = {"small": ("Qwen3-VL", "2B"), "large": ("Qwen3-VL", "8B")}
"""The models of Table 11."""
CLOSE = 0.01
"""A larger relative difference from the paper gets a sentence of its own."""


@dataclass(frozen=True)
class TimedRun:
    """One run, its time by stage, and its row of Table 11."""

    run: Run
    stages: list[StageTime]
    paper: PaperNumber | None
    """The time that Table 11 prints for the same calls."""

    @property
    def equation_s(self) -> float:
        """The time by Eq. 27."""
        return sum(stage.equation_s for stage in self.stages)

    @property
    def corrected_s(self) -> float:
        """The time without the double TTFT."""
        return sum(stage.corrected_s for stage in self.stages)

    @property
    def documents(self) -> int:
        """The number of documents."""
        return len(self.run.documents)


def estimated_times(evidence: Evidence) -> Iterator[Table]:
    """Yield Table 11 for runs of the paper's models, with the paper's profile."""
    tables = time_tables(evidence, Profiles(paper_profiles.profiles()))
    yield from (table for table in tables if table.key == "table-11")


def time_tables(evidence: Evidence, profiles: Profiles) -> Iterator[Table]:
    """Yield Table 11 and the times by stage for all runs that the profiles fit."""
    timed = [one for benchmark in evidence.benchmarks() for one in _timed(evidence, profiles, benchmark)]
    if timed:
        yield _table_11(evidence, profiles, timed)
        yield _by_stage(evidence, profiles, timed)


def _timed(evidence: Evidence, profiles: Profiles, benchmark: str) -> Iterator[TimedRun]:
    for run in timed_runs(evidence, benchmark):
        times = profiles.of_run(run)
        if times is not None:
            yield TimedRun(run, stage_times(run, times), _paper_time(profiles, run))


def _paper_time(profiles: Profiles, run: Run) -> PaperNumber | None:
    """Return the time in Table 11. None: it has other models, another method or another number of documents."""
    method = run.method
    row = ROWS.get(method.mode)
    if (
        row is None
        or method.variant != "R"
        or method.two_stage
        or method.options
        or profiles.device != paper_profiles.DEVICE
    ):
        return None
    sides: dict[Side, str] = {"small": method.small, "large": method.model}
    found = {side: profiles.of(side, model) for side, model in sides.items()}
    pair = {side: paper_numbers.family(times.profile.model) for side, times in found.items() if times is not None}
    if pair != PAIR or len(run.documents) != paper_numbers.documents(run.benchmark):
        return None
    return paper_numbers.sequential_time(row, run.benchmark)


def _table_11(evidence: Evidence, profiles: Profiles, timed: list[TimedRun]) -> Table:
    beyond = sum(stage.beyond for one in timed for stage in one.stages)
    calls = sum(stage.calls for one in timed for stage in one.stages)
    notes = [
        f"The calls of the runs with the profile of {profiles.device}, one after another (Eq. 27): TTFT by the length "
        "of the prompt, plus output tokens / (tokens per second). One TTFT: the same without the share of the TTFT in "
        "the tokens per second, which Eq. 27 counts twice.",
        *([f"{beyond} of {calls} calls have a prompt that is longer than the profile's: their TTFT is on the line of "
           "its last two points."] if beyond else []),
        *_close(evidence, timed),
        *(sentence for one in timed if (sentence := _difference(evidence, one))),
    ]  # fmt: skip
    return Table(
        key="table-11",
        title="Table 11: estimated time of the calls, one after another",
        columns=(
            *OF_RUN,
            Column("small, s", digits=1),
            Column("large, s", digits=1),
            Column("Eq. 27, s", digits=1),
            Column("- paper, %", digits=1),
            Column("Full RT / this, Eq. 27", digits=2),
            Column("one TTFT, s", digits=1),
            Column("Full RT / this, one TTFT", digits=2),
            Column("s per document", digits=3),
        ),
        rows=tuple(_row(evidence, one, timed) for one in timed),
        notes=tuple(notes),
    )


def _row(evidence: Evidence, one: TimedRun, timed: list[TimedRun]) -> tuple[Cell, ...]:
    run, full = one.run, _full_rt(one, timed)
    speedup = None
    if full is not None and one.documents:
        printed = paper_numbers.sequential_time("speedup", run.benchmark) if one.paper and full is not one else None
        ratio = _per_document(full.equation_s, full) / _per_document(one.equation_s, one)
        speedup = with_paper(Estimate(ratio, one.documents), printed if run.method.mode == "cascade" else None)
    return (
        benchmark_name(run.benchmark),
        evidence.name(run.method),
        one.documents,
        *(_side(one, side) for side in ("small", "large")),
        with_paper(Estimate(one.equation_s, one.documents), one.paper),
        100 * (one.equation_s / one.paper.value - 1) if one.paper else None,
        speedup,
        one.corrected_s,
        _per_document(full.corrected_s, full) / _per_document(one.corrected_s, one) if full else None,
        _per_document(one.corrected_s, one),
    )


def _side(one: TimedRun, side: str) -> float | None:
    """Return the time of one model by Eq. 27. None: it makes no calls."""
    seconds = [stage.equation_s for stage in one.stages if stage.side == side]
    return sum(seconds) if seconds else None


def _per_document(seconds: float, one: TimedRun) -> float:
    return seconds / one.documents


def _full_rt(one: TimedRun, timed: list[TimedRun]) -> TimedRun | None:
    """Return the first Full RT of the same benchmark with the same model. None: there is none."""
    for other in timed:
        method = other.run.method
        same = other.run.benchmark == one.run.benchmark and one.run.method.model in (method.model, method.small)
        if same and method.mode == "transfer" and (not one.run.method.small or method.small == one.run.method.small):
            return other
    return None


def _close(evidence: Evidence, timed: list[TimedRun]) -> Iterator[str]:
    """Yield a sentence with the times that are the paper's."""
    names = [
        f"{evidence.name(one.run.method)} on {benchmark_name(one.run.benchmark)}"
        for one in timed
        if one.paper is not None and _is_close(one, one.paper)
    ]
    if names:
        yield f"Within {CLOSE:.0%} of the paper: {', '.join(names)}."


def _is_close(one: TimedRun, paper: PaperNumber) -> bool:
    return abs(one.equation_s / paper.value - 1) <= CLOSE


def _difference(evidence: Evidence, one: TimedRun) -> str:
    """Return why a time differs from the paper's: the length of thinking that the printed time needs. Empty: it does
    not differ."""
    thinking = [stage for stage in one.stages if stage.stage == "think"]
    if one.paper is None or not thinking or _is_close(one, one.paper):
        return ""
    (think,) = thinking
    speed = think.output_tokens / think.decoding_s
    needed = (one.paper.value - one.equation_s + think.decoding_s) * speed / think.calls
    printed = paper_numbers.cell(5, "2B", one.run.benchmark, "R")
    table_5 = f", and Table 5 has {printed.value:,.1f}" if printed else ""
    where = "on all documents" if think.calls == one.documents else "on the documents that think"
    return (
        f"{evidence.name(one.run.method)} on {benchmark_name(one.run.benchmark)}: the paper prints "
        f"{one.paper.value:,.0f} s. With the other calls as here, this needs {needed:,.0f} output tokens for each "
        f"thinking {where}. These calls have {think.output_tokens / think.calls:,.1f}{table_5}."
    )


def _by_stage(evidence: Evidence, profiles: Profiles, timed: list[TimedRun]) -> Table:
    return Table(
        key="times-by-stage",
        title="Estimated time by model and stage",
        columns=(
            Column("benchmark", "text"),
            Column("method", "text"),
            Column("model", "text"),
            Column("stage", "text"),
            Column("calls", "count"),
            Column("prompt tokens"),
            Column("output tokens"),
            Column("TTFT, s"),
            Column("decoding, s"),
            Column("Eq. 27, s"),
            Column("one TTFT, s"),
            Column("longer prompts", "count"),
        ),
        rows=tuple(
            (
                benchmark_name(one.run.benchmark),
                evidence.name(one.run.method),
                stage.side,
                stage.stage,
                stage.calls,
                stage.prompt_tokens / stage.calls,
                stage.output_tokens / stage.calls,
                stage.ttft_s,
                stage.decoding_s,
                stage.equation_s,
                stage.corrected_s,
                stage.beyond,
            )
            for one in timed
            for stage in one.stages
        ),
        notes=(
            "Prompt and output tokens are averages of a call, and seconds are sums. Longer prompts: calls with a "
            "prompt that is longer than all of the profile's.",
        ),
    )
