"""The paper's tables: the numbers of finished runs beside those of the paper.

Each table has a row for each run and a column for each measure. Other models and benchmarks have the same tables,
without the numbers of the paper.
"""

import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import pandas as pd

from lmms_eval_mai.analysis import paper_numbers
from lmms_eval_mai.analysis.intervals import Estimate
from lmms_eval_mai.analysis.report import Column, Table, table
from lmms_eval_mai.analysis.runs import metrics
from lmms_eval_mai.analysis.runs.folders import FinishedRun
from lmms_eval_mai.analysis.runs.runs import Runs, name_columns
from lmms_eval_mai.analysis.runs.setups import NAMES
from lmms_eval_mai.analysis.tables.seconds import PAPERS_DEVICE, Profile
from lmms_eval_mai.method.benchmarks import benchmark_of
from lmms_eval_mai.method.methods import CALL_OF_VARIANT, FULL_RT, MAI

BASELINES = ("small S", "small R", "large S", "Full RT")
"""The scores beside a method in Table 10 (`Runs.baselines`)."""
MEASURES = ("tokens", "answer_tokens", *BASELINES, "score", *MAI.exits, "seconds", "speedup")
"""The columns of the tables, and after MAI's the exits of other methods. Exits: documents in percent. Seconds: by Eq.
27. Speedup: the seconds of Full RT, divided by those of the run."""
QWEN, INTERNVL = "Qwen3-VL", "InternVL3.5"
TABLES = {
    "tables-5-13": (
        {5: QWEN, 13: INTERNVL},
        "Tables 5 and 13: average number of generated tokens",
        "tokens: all generated tokens with the end token; of two stages, those of the first. answer_tokens: those of "
        "the extracted answer. The paper's 1.0 for POPE is probably the answer only.",
    ),
    "tables-6-7-14": (
        {6: QWEN, 7: QWEN, 14: INTERNVL},
        "Tables 6, 7 and 14: performance of one model, %",
        "POPE: F1; InfoVQA: ANLS; MMBench: questions with all rotations right; others: accuracy. (S2): two stages. S "
        "without a run of its own is from the short answers inside a cascade.",
    ),
    "table-8": (
        {8: QWEN},
        "Table 8: reasoning transfer on all documents (Full RT), %",
        "The small model alone has one stage, and the large one two (one on MMMU and shapes).",
    ),
    "table-10": (
        {10: QWEN},
        "Table 10: multi-agent inference (MAI), %",
        "agree_short is MV small(S)/large(S), agree_think is MV small(R)/large(S), transfer is RT. Of the methods, the "
        "paper has only MAI.",
    ),
    "table-15": ({15: QWEN}, "Table 15: the cascade with R and with R(S2), %", ""),
    "table-11": (
        {11: QWEN},
        "Table 11: estimated seconds of the calls one after another",
        "Computed, not measured. speedup: the seconds of Full RT, divided by those of the row. Eq. 27 counts a share "
        "of the TTFT twice, because the tokens per second of Table 4 are those of whole requests.",
    ),
}
"""Key of a table in a report -> its numbers in the paper with their models, its title, and a note."""
NUMBERS = tuple(map(str, sorted(number for numbers, *_ in TABLES.values() for number in numbers)))
"""The numbers of the tables in the paper."""
PAPERS_NOTE = (
    "The paper's times look like those of transformers: its 8B model takes 20.5 ms for a token, as its 4B model does, "
    "and an H100 reads the weights of an 8B model in about 5 ms. So ratios computed with them may not hold for vLLM."
)


def tables(runs: Runs, chosen: Collection[str], profile: Profile) -> Iterator[Table]:
    """Yield the tables that have one of the chosen numbers. `profile`: the times of Table 11."""
    keys = [key for key, (numbers, *_) in TABLES.items() if not {*map(str, numbers)}.isdisjoint(chosen)]
    every = runs.select()
    cells = {one for run in every for one in _cells_of(runs, run)}
    every_time = ((run, profile.seconds(run)) for run in every if "table-11" in keys)
    times = {run: seconds for run, seconds in every_time if seconds is not None}

    exits = [exit for run in every if run.setup.family in ("solo", "cascade") for exit in run.setup.method.exits]
    measures = list(dict.fromkeys([*MEASURES[:-2], *exits, *MEASURES[-2:]]))

    @functools.cache
    def cell(key: str, measure: str, run: FinishedRun) -> Estimate | None:
        """Return a number of a table with that of the paper. None: not known, or not in this table."""
        if (key, run, measure) not in cells:
            return None
        if measure in BASELINES:
            other = runs.baselines(run).get(measure)
            run, measure = other or run, "score"
            if other is None:
                return None
        estimate = _estimate(runs, run, measure, times)
        return estimate and replace(estimate, paper=_paper(key, run, measure, profile))

    for key in keys:
        _, title, note = TABLES[key]
        notes = [note] * bool(note)
        if key == "table-11":
            title = f"{title}, {profile.device}"
            notes += [PAPERS_NOTE] * (profile.device == PAPERS_DEVICE)
        columns: list[Column[FinishedRun]] = [
            *name_columns(runs, lambda run: run),
            Column("n", "count", 0, lambda run: run.documents),
            *(
                Column(
                    measure.replace("_", "_\n"),
                    "percent" if measure in ("score", *BASELINES) else "brief",
                    2,
                    functools.partial(cell, key, measure),
                )
                for measure in measures
            ),
        ]
        shown = [run for run in every if any((key, run, m) in cells and cell(key, m, run) for m in measures)]
        yield from table(key, title, columns, shown, notes)


def _cells_of(runs: Runs, run: FinishedRun) -> Iterator[tuple[str, FinishedRun | None, str]]:
    """Yield the cells of a run in the tables, and those of the runs beside it: table, run and measure."""
    setup, benchmark = run.setup, run.benchmark
    large_s = runs.get(benchmark, setup.short_answers("large"))
    yield from (("table-11", run, measure) for measure in ("seconds", "speedup"))
    if setup.family == "alone":
        yield "tables-6-7-14", run, "score"
        yield from (("tables-5-13", run, measure) for measure in ("tokens", "answer_tokens"))
    if setup.method == FULL_RT:
        small_r = runs.get(benchmark, setup.alone("small", "R"))
        large_r = runs.get(benchmark, setup.alone("large", "R", not benchmark_of(benchmark).one_stage))
        yield from (("table-8", other, "score") for other in (small_r, large_s, large_r, run))
    if setup.family in ("solo", "cascade"):
        yield from (("table-10", run, measure) for measure in (*BASELINES, "score", *setup.method.exits))
    if setup.method == MAI and runs.get(benchmark, replace(setup, two_stage=not setup.two_stage)):
        yield from (("table-15", run, measure) for measure in (*MAI.exits[1:], "score"))


def _estimate(runs: Runs, run: FinishedRun, measure: str, times: Mapping[FinishedRun, pd.Series]) -> Estimate | None:
    """Return a measure of a run. None: not known. `times`: seconds of each document."""
    if measure == "score":
        return runs.score(run)
    if measure in run.setup.method.exits:
        return runs.exit_share(run, measure)
    if measure in ("tokens", "answer_tokens"):
        calls = run.calls[run.calls.prompt == CALL_OF_VARIANT[run.setup.variant]].set_index("doc_id")
        if len(calls) != run.documents:
            return None
        return metrics.mean(calls["output_tokens" if measure == "tokens" else measure], runs.clusters(run.benchmark))
    if run not in times:
        return None
    if measure == "seconds":
        return Estimate(times[run].sum(), run.documents)
    full_rt = runs.full_rt(run)
    if full_rt is None or full_rt not in times or full_rt is run:
        return None
    both = times[run].index.intersection(times[full_rt].index)
    return Estimate(times[full_rt][both].sum() / times[run][both].sum(), len(both))


def _paper(key: str, run: FinishedRun, measure: str, profile: Profile) -> float | None:
    """Return the paper's number for a cell of a run. None: it has other models, options, documents or times."""
    same = profile.device == PAPERS_DEVICE and run.documents == paper_numbers.documents(run.benchmark)
    if run.setup.options or (key == "table-11" and not same):
        return None
    named = [paper_numbers.family(model) or ("", "") for model in (run.setup.model, run.setup.small) if model]
    families, models_named = {family for family, _ in named}, " + ".join(name for _, name in named)
    is_two_stage = run.setup.two_stage and measure != "tokens"
    method = "" if run.setup.family == "alone" else NAMES.get(run.setup.method, run.setup.method.name)
    method = f"{method} {models_named}-{replace(run.setup, two_stage=is_two_stage).prompt}".lstrip()
    for number, models in TABLES[key][0].items():
        if families == {models}:
            value = paper_numbers.number(number, method, run.benchmark, measure)
            if value is not None:
                return value
    return None
