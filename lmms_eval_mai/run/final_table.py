"""The final table of a run. `figures.py` returns the same figures as plain data."""

from collections.abc import Iterator, Mapping

from pytablewriter import MarkdownTableWriter

from lmms_eval_mai.contract import Side
from lmms_eval_mai.paper.sample import EXITS, Exit
from lmms_eval_mai.redaction import without_password
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.metering import RunTotals, Selections, TaskTotals, Usage


def table(totals: RunTotals, config: Config) -> str:
    """Return the final table: one row per task with its samples, its exits, and the calls, output tokens and seconds of
    each engine. Below it come the wall times and the samples without an answer.

    A mode with a single exit has no exit columns: all samples have that exit. The columns `Not answered` and
    `Unreadable` are only present if there are such samples. With `transfer=sparse`, the column `kept tokens` has the
    tokens of the thinking that were kept. An engine has columns for the tokens of its answers and for speculative
    decoding if it reports these figures for all of its calls. An engine with shared calls has a column for their number
    and none for seconds, and the run has no wall times.
    """
    meter = totals.meter
    exits = EXITS[config.mode] if len(EXITS[config.mode]) > 1 else ()
    counts = {
        "Not answered": {name: task.failed for name, task in meter.tasks.items()},
        "Unreadable": {name: task.unreadable for name, task in meter.tasks.items()},
    }
    shown = {header: of_task for header, of_task in counts.items() if any(of_task.values())}
    writer = MarkdownTableWriter()
    columns = {engine.side: _columns(meter.usage(engine.side)) for engine in config.engines()}
    headers = [f"{side} {column}" for side, own in columns.items() for column in own]
    kept = ["kept tokens"] if config.transfer == "sparse" else []
    writer.headers = ["Task", "Samples", *shown, *exits, *kept, *headers]
    writer.value_matrix = [
        _row(name, task, exits, bool(kept), columns, [of_task[name] for of_task in shown.values()])
        for name, task in sorted(meter.tasks.items())
    ]
    ranks = f", {totals.ranks} ranks" if totals.ranks > 1 else ""
    models = ", ".join(f"{engine.side} {without_password(engine.model)}" for engine in config.engines())
    lines = "\n".join(_lines(totals))
    mode = f"mode={config.mode}{', transfer=sparse' if kept else ''}"
    return f"\nmai_cascade {mode}: {models}{ranks}\n{writer.dumps()}\n{lines}\n"


def _lines(totals: RunTotals) -> Iterator[str]:
    """Return the lines below the table."""
    meter = totals.meter
    if shared := meter.shared_calls():
        calls = sum(usage.calls for task in meter.tasks.values() for usage in task.usage.values())
        yield f"{shared} of {calls} calls are shared: other runs of this command made them. So this run has no times."
    else:
        yield _wall_times(totals)
    if empty := meter.selections().empty:
        yield (
            f"In {empty} samples no token of the thinking was transferred, because one token has more than "
            "sparse_delta of the attention. sparse_boundary=least keeps this token."
        )
    if meter.unreadable():
        yield (
            f"Unreadable: the task's scorer cannot read the final answer of {meter.unreadable()} samples. lmms-eval's "
            "MMMU scorer guesses the option of such a multiple-choice answer at random; all other scorers give it 0."
        )
    if meter.failed():
        kinds = ", ".join(f"{count} {kind}" for kind, count in meter.failures.kinds.most_common())
        yield f"{meter.failed()} samples have no answer and are left out of all scores: {kinds}."
        yield str(meter.failures)


def _wall_times(totals: RunTotals) -> str:
    tasks = totals.meter.tasks
    earlier = f", {totals.earlier_s:.1f} s of it before this start" if totals.earlier_s else ""
    by_task = ", ".join(f"{name} {task.wall_s:.1f} s" for name, task in sorted(tasks.items()))
    return f"Wall time {totals.wall_s:.1f} s{earlier}{f': {by_task}' if len(tasks) > 1 else ''}."


def _row(
    task: str,
    totals: TaskTotals,
    exits: tuple[Exit, ...],
    sparse: bool,
    columns: Mapping[Side, list[str]],
    counts: list[int],
) -> list[str]:
    samples = max(1, totals.samples)
    shares = [f"{totals.exits[exit]} ({totals.exits[exit] / samples:.2%})" for exit in exits]
    figures = [_figures(totals.usage_of(side))[column] for side, shown in columns.items() for column in shown]
    kept = [_kept(totals.selections)] if sparse else []
    return [task, str(totals.samples), *map(str, counts), *shares, *kept, *figures]


def _kept(selections: Selections) -> str:
    kept, scored = selections.kept_tokens, selections.scored_tokens
    return f"{kept} of {scored} ({kept / max(1, scored):.2%})"


def _columns(usage: Usage) -> list[str]:
    """Return the columns of an engine with this sum of all tasks."""
    unknown = set()
    if usage.answer_tokens is None or not usage.calls:
        unknown |= {"answer tokens"}
    if usage.proposed_tokens is None or not usage.calls:
        unknown |= {"drafted tokens accepted"}
    if usage.target_calls is None or not usage.calls:
        unknown |= {"target calls"}
    unknown.add("call seconds" if usage.shared_calls else "shared calls")
    return [column for column in _figures(usage) if column not in unknown]


def _figures(usage: Usage) -> dict[str, str]:
    """Return the cell of each column. A number that is not known must not be shown."""
    accepted, proposed = usage.accepted_tokens or 0, usage.proposed_tokens or 0
    return {
        "calls": str(usage.calls),
        "shared calls": str(usage.shared_calls),
        "output tokens": str(usage.output_tokens),
        "answer tokens": str(usage.answer_tokens),
        "drafted tokens accepted": f"{accepted} of {proposed} ({accepted / max(1, proposed):.2%})",
        "target calls": str(usage.target_calls),
        "call seconds": f"{usage.call_seconds:.1f}",
    }
