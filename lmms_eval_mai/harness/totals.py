"""What a run has counted, and the table at its end."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.engines.thinking import thought_first
from lmms_eval_mai.method.repeats import THINKS, about_ends, is_endless
from lmms_eval_mai.method.sample import Trace
from lmms_eval_mai.redaction import without_password
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.outcomes import Failures


@dataclass(frozen=True)
class Totals:
    """The sums of one rank or of all ranks."""

    counts: Mapping[str, Counter[str]]
    """Task -> what is counted -> a number. Counted are `samples`, `unreadable`, `exit NAME`, the `scored` and the
    `kept` tokens of a sparse transfer, and of each model, such as `small calls`: its `calls`, `tokens`, microseconds
    (`us`), and the calls that are `shared`, `cut` off, or `thought` before a short answer; the `thinkings`, and those
    that a limit has `cut`, of which some are `endless`, and that `stop_repeats` has `stopped`."""
    failures: Failures
    resumed: bool
    """Whether earlier processes made a part of the calls."""
    wall_s: float | None
    """The seconds from the first request to the end of the last call; of the slowest rank. None: not known, because
    calls are shared, or the run was resumed."""
    ranks: int = 1

    @classmethod
    def of(cls, traces: Sequence[Trace], failures: Failures, resumed: bool) -> "Totals":
        counts = defaultdict[str, Counter[str]](Counter)
        for trace in traces:
            counts[trace.answer.key.task].update(_counts(trace))
        return cls(counts, failures, resumed, None if resumed else _wall_s(traces))

    @classmethod
    def merged(cls, ranks: Sequence["Totals"]) -> "Totals":
        counts = defaultdict[str, Counter[str]](Counter)
        for task, counted in (item for rank in ranks for item in rank.counts.items()):
            counts[task].update(counted)
        walls = [rank.wall_s for rank in ranks if rank.counts]
        known = [seconds for seconds in walls if seconds is not None]
        slowest = max(known) if known and len(known) == len(walls) else None
        failures = Failures.merged([rank.failures for rank in ranks])
        return cls(counts, failures, any(rank.resumed for rank in ranks), slowest, len(ranks))

    def sum(self, *names: str) -> int:
        """Return the sum over all tasks of what has one of these names."""
        return sum(counted[name] for counted in self.counts.values() for name in names)


def _counts(trace: Trace) -> Counter[str]:
    counts = Counter({"samples": 1, f"exit {trace.exit}": 1, "unreadable": int(not trace.readable)})
    if (selection := trace.selection) is not None:
        counts.update(scored=selection.scored_tokens, kept=selection.kept_tokens)
    for call in trace.calls:
        sums = {
            "calls": 1,
            "tokens": call.output_tokens,
            "us": round(1e6 * call.total_s),
            "shared": call.shared,
            "cut": call.finish_reason == "length",
            "thought": thought_first(call.key.prompt, call.text, call.thinking),
        }
        counts.update({f"{call.key.side} {name}": value for name, value in sums.items()})
        if call.key.prompt in THINKS:
            endless = is_endless(call.key.prompt, call.finish_reason, call.text, call.thinking)
            end = {"length": "endless", "repetition": "stopped"}.get(call.finish_reason, "")
            counts.update({"thinkings": 1, "cut": sums["cut"], end: endless})
    return counts


def _wall_s(traces: Sequence[Trace]) -> float | None:
    calls = [call for trace in traces for call in trace.calls]
    times = [(call.started_at, call.total_s) for call in calls if not call.shared]
    known = [(begin, begin + seconds) for begin, seconds in times if begin is not None]
    if not known or len(known) < len(calls):
        return None
    return max(end for _, end in known) - min(begin for begin, _ in known)


def final_table(totals: Totals, config: Config) -> str:
    """Return the table at the end of a run, and the sentences below it. A method with a single exit has no columns of
    exits. A column without a number is left out."""
    failed = totals.failures.tasks
    tasks = sorted({*totals.counts, *failed})
    rows = [_row(task, totals.counts.get(task, Counter()), failed[task], config) for task in tasks]
    headings = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    head = [*itertools.zip_longest(*(reversed(name.split("\n")) for name in headings), fillvalue="")][::-1]
    cells = [*head, *([_text(row[name]) for name in headings] for row in rows)]
    align = ("left", *["right"] * (len(headings) - 1))
    table = tabulate(cells, tablefmt="plain", disable_numparse=True, colalign=align)
    models = ", ".join(f"{engine.side} {without_password(engine.model)}" for engine in config.engines())
    ranks = f", {totals.ranks} ranks" if totals.ranks > 1 else ""
    options = "".join(f", {name}={value}" for name, value in config.settings.options.items())
    lines = "\n".join(_lines(totals))
    return f"\nmai_cascade method={config.method.name}{options}: {models}{ranks}\n\n{table}\n\n{lines}\n"


def _text(cell: Any) -> str:
    if cell is None or isinstance(cell, str):
        return cell or ""
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.1f}"


def _row(task: str, counts: Counter[str], failed: int, config: Config) -> dict[str, Any]:
    row: dict[str, Any] = {"task": task, "n": counts["samples"], "failed": failed or None}
    for exit in config.method.exits if len(config.method.exits) > 1 else ():
        row[exit.replace("_", "_\n") + "\n%"] = 100 * counts[f"exit {exit}"] / max(1, counts["samples"])
    if config.transfer == "sparse":
        row["kept\ntokens\n%"] = 100 * counts["kept"] / max(1, counts["scored"])
    for side in (engine.side for engine in config.engines()):
        row[f"{side}\ncalls"], row[f"{side}\ntokens"] = counts[f"{side} calls"], counts[f"{side} tokens"]
        row[f"{side}\ns"] = None if counts[f"{side} shared"] else counts[f"{side} us"] / 1e6
    return row


def _lines(totals: Totals) -> Iterator[str]:
    failures = totals.failures
    if shared := totals.sum(*(f"{side} shared" for side in SIDES)):
        calls = totals.sum(*(f"{side} calls" for side in SIDES))
        yield (
            f"{shared} of {calls} calls are shared: other runs made them. So their model has no seconds here, and the "
            "run has no wall time."
        )
    elif totals.resumed:
        yield "The run was resumed, so it has no wall time."
    elif totals.wall_s is not None:
        yield f"Wall time {totals.wall_s:.1f} s."
    for side in SIDES:
        if cut := totals.sum(f"{side} cut"):
            yield f"Cut off at a token limit (`finish_reason` is `length`): {cut} calls of the {side} model."
        if thinking := totals.sum(f"{side} thought"):
            yield f"Short answers with a thinking of the model's own: {thinking} calls of the {side} model."
    if sentence := about_ends(*map(totals.sum, ("thinkings", "cut", "endless", "stopped"))):
        yield sentence
    if unreadable := totals.sum("unreadable"):
        yield (
            f"Unreadable: the task's scorer cannot read the final answer of {unreadable} samples. lmms-eval's "
            "MMMU scorer guesses the option of such a multiple-choice answer at random; all other scorers give it 0."
        )
    if failures.count:
        errors = ", ".join(f"{count} {error}" for error, count in failures.by_type.items())
        yield f"{failures.count} samples have no answer and are left out of all scores: {errors}."
        yield str(failures)
