"""The final table of a run. `figures.py` returns the same figures as plain data."""

from collections.abc import Iterator

from pytablewriter import MarkdownTableWriter

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.paper.confidence import DEFAULT
from lmms_eval_mai.redaction import without_password
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.metering import RunTotals, TaskTotals, Usage


def table(totals: RunTotals, config: Config) -> str:
    """Return the final table: one row per task with its samples, its exits, and the calls, output tokens and seconds of
    each engine. Below it come the wall times and the samples without an answer.

    A mode with a single exit has no exit columns: all samples have that exit. The columns `Not answered` and
    `Unreadable` are only present if there are such samples. With `transfer=sparse`, the column `kept tokens` has the
    tokens of the thinking that were kept. An engine has columns for the tokens of its answers and for speculative
    decoding if it reports these figures for all of its calls. An engine with shared calls has a column for their number
    and none for seconds, and the run has no wall times.
    """
    total = totals.of_all_tasks()
    writer = MarkdownTableWriter()
    writer.headers = list(_row("", total, total, config))
    writer.value_matrix = [
        list(_row(name, task, total, config).values()) for name, task in sorted(totals.tasks.items())
    ]
    ranks = f", {totals.ranks} ranks" if totals.ranks > 1 else ""
    models = ", ".join(f"{engine.side} {without_password(engine.model)}" for engine in config.engines())
    lines = "\n".join(_lines(totals, total))
    mode = f"mode={config.mode}{', transfer=sparse' if config.transfer == 'sparse' else ''}"
    if config.verify != "agreement":
        given = DEFAULT if config.min_confidence is None else config.min_confidence
        mode += f", verify={config.verify}, min_confidence={given}"
    return f"\nmai_cascade {mode}: {models}{ranks}\n{writer.dumps()}\n{lines}\n"


def _lines(totals: RunTotals, total: TaskTotals) -> Iterator[str]:
    """Return the lines below the table."""
    usage = total.usage_of(*SIDES)
    if usage.shared_calls:
        yield (
            f"{usage.shared_calls} of {usage.calls} calls are shared: other runs of this command made them. So this "
            "run has no times."
        )
    else:
        yield _wall_times(totals)
    if total.selections.empty:
        yield (
            f"In {total.selections.empty} samples no token of the thinking was transferred, because one token has more "
            "than sparse_delta of the attention. sparse_boundary=least keeps this token."
        )
    if total.unreadable:
        yield (
            f"Unreadable: the task's scorer cannot read the final answer of {total.unreadable} samples. lmms-eval's "
            "MMMU scorer guesses the option of such a multiple-choice answer at random; all other scorers give it 0."
        )
    if total.failed:
        kinds = ", ".join(f"{count} {kind}" for kind, count in totals.failures.kinds.most_common())
        yield f"{total.failed} samples have no answer and are left out of all scores: {kinds}."
        yield str(totals.failures)


def _wall_times(totals: RunTotals) -> str:
    tasks = totals.tasks
    earlier = f", {totals.earlier_s:.1f} s of it before this start" if totals.earlier_s else ""
    by_task = ", ".join(f"{name} {task.wall_s:.1f} s" for name, task in sorted(tasks.items()))
    return f"Wall time {totals.wall_s:.1f} s{earlier}{f': {by_task}' if len(tasks) > 1 else ''}."


def _row(name: str, task: TaskTotals, total: TaskTotals, config: Config) -> dict[str, str]:
    """Return the cells of a task by column. `total`: the sums over all tasks, which decide the columns."""
    row = {"Task": name, "Samples": str(task.samples)}
    if total.failed:
        row["Not answered"] = str(task.failed)
    if total.unreadable:
        row["Unreadable"] = str(task.unreadable)
    if len(config.exits()) > 1:
        samples = max(1, task.samples)
        row |= {exit: f"{task.exits[exit]} ({task.exits[exit] / samples:.2%})" for exit in config.exits()}
    if config.transfer == "sparse":
        row["kept tokens"] = _part(task.selections.kept_tokens, task.selections.scored_tokens)
    for engine in config.engines():
        cells = _cells(task.usage_of(engine.side), total.usage_of(engine.side))
        row |= {f"{engine.side} {column}": cell for column, cell in cells.items()}
    return row


def _cells(usage: Usage, total: Usage) -> dict[str, str]:
    """Return the cells of one engine in a task by column. A number that is not known of all calls is not shown."""
    cells = {"calls": str(usage.calls)}
    if total.shared_calls:
        cells["shared calls"] = str(usage.shared_calls)
    cells["output tokens"] = str(usage.output_tokens)
    if total.calls and total.answer_tokens is not None:
        cells["answer tokens"] = str(usage.answer_tokens)
    if total.calls and total.proposed_tokens is not None:
        cells["drafted tokens accepted"] = _part(usage.accepted_tokens or 0, usage.proposed_tokens or 0)
    if total.calls and total.target_calls is not None:
        cells["target calls"] = str(usage.target_calls)
    if not total.shared_calls:
        cells["call seconds"] = f"{usage.call_seconds:.1f}"
    return cells


def _part(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / max(1, whole):.2%})"
