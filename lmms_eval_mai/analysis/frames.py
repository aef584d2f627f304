"""Traces as two pandas frames, with a row for each sample and one for each call. All figures are sums over their rows.

The traces of a run that has just ended and those of finished runs give the same frames, so the table at the end of a
run (`final_table`) and the reports count in the same way.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.engines.thinking import thought_first
from lmms_eval_mai.method.trace import Trace
from lmms_eval_mai.redaction import without_password
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.failures import Failures
from lmms_eval_mai.run.trace_record import trace_record

Record = dict[str, Any]
"""A trace or one of its calls as JSON values (docs/output.md)."""
RESULTS = "_results.json"
"""How the names of lmms-eval's results files end."""

SAMPLES: dict[str, tuple[type, str]] = {
    "target": (object, "The gold answer as lmms-eval logs it"),
    "score": (float, "0 to 1; nan if there is none"),
    "predicted": (object, "POPE: the predicted label (yes, no or other); None for others"),
    "gold": (object, "POPE: the gold label"),
    "group": (float, "MMBench: the question that the document is a rotation of; nan for others"),
    "is_main": (bool, "MMBench: whether this is the question in its original order"),
    "kind": (object, "The category of the question, as its trace names it; None if the data set has none"),
    "images": (object, "The hashes of its images; None if they are not logged"),
    "output_tokens": (float, "Of both models; nan if there are no token counts"),
    "exit": (object, "None without a trace"),
    "readable": (object, "Whether the scorer can read the final answer; None if it is not known"),
    "parsed": (object, "The final answer as the scorer reads it; None if it cannot"),
    "chose_threshold": (bool, "Whether an image of the document was used to choose the threshold"),
    "scored_tokens": (float, "Sparse transfer: tokens of the thinking; nan for others"),
    "kept_tokens": (float, "Sparse transfer: those that were transferred"),
}
"""Columns of a frame of samples: type and meaning. Its index is the document. A number that may be unknown is a float,
so that nan can stand for it."""
CALLS: dict[str, tuple[type, str]] = {
    "doc_id": (int, "The document"),
    "side": (object, "small or large"),
    "prompt": (object, "What the call asks (contract.CallPrompt)"),
    "of": (object, "The call whose thinking it reads, such as small.think; None if there is none"),
    "parsed": (object, "Its answer as the scorer reads it; None if it cannot"),
    "answer_logprob": (float, "Log-probability of the answer; nan if the engine does not report it"),
    "prompt_tokens": (int, "With image tokens and cached tokens"),
    "cached_tokens": (int, "From the engine's prefix cache"),
    "image_tokens": (float, "nan if they are not known"),
    "output_tokens": (float, "All generated tokens"),
    "answer_tokens": (float, "Of the extracted answer; nan if they are not known"),
    "proposed_tokens": (float, "Speculative decoding: drafted tokens; nan if they are not known"),
    "accepted_tokens": (float, "Speculative decoding: drafted tokens that the model accepted"),
    "seconds": (float, "nan if the call is shared: another run made it"),
    "started_at": (float, "Unix time; nan if the call is shared"),
    "cut_off": (bool, "Whether a limit cut the answer off"),
    "shared": (bool, "Whether another run made the call"),
    "thought_first": (bool, "Whether the model thought by itself before a short answer, though it must not"),
}
"""Columns of a frame of calls."""
NAMED_OTHERWISE = {"seconds": "total_s", "cut_off": "finish_reason"}
"""Column -> the field of a call that it is made of."""


class Frames(NamedTuple):
    """The samples and the calls of a task, or of several runs."""

    samples: pd.DataFrame
    """`SAMPLES`."""
    calls: pd.DataFrame
    """`CALLS`."""


def frames(rows: Sequence[Record], calls: Sequence[Record]) -> Frames:
    """Return rows of samples (`sample_row`) and of calls (`call_row`) as frames. Both may lack what is not known."""
    types = {"doc_id": int} | {name: kind for name, (kind, _) in SAMPLES.items()}
    samples = {
        name: pd.Series([row.get(name, name == "is_main" if kind is bool else None) for row in rows], dtype=kind)
        for name, kind in types.items()
    }
    columns = {name: pd.Series([call.get(name) for call in calls], dtype=kind) for name, (kind, _) in CALLS.items()}
    return Frames(pd.DataFrame(samples).set_index("doc_id"), pd.DataFrame(columns))


def sample_row(trace: Record) -> Record:
    """Return what a trace tells about its sample."""
    selection = trace.get("selection") or {}
    return {
        "kind": trace.get("category"),
        "images": tuple(trace["images"]) if trace.get("images") else None,
        "output_tokens": number(trace.get("output_tokens")),
        "exit": trace.get("exit"),
        "readable": trace.get("readable"),
        "parsed": trace.get("parsed"),
        "chose_threshold": bool(trace.get("chose_threshold")),
        **{name: selection.get(name) for name in ("scored_tokens", "kept_tokens")},
    }


def call_row(doc_id: int, call: Record) -> Record:
    """Return a call of a trace without its texts, which would need much memory."""
    row = {name: call.get(NAMED_OTHERWISE.get(name, name)) for name in CALLS}
    shared = bool(row["shared"])
    return row | {
        "doc_id": doc_id,
        "cached_tokens": row["cached_tokens"] or 0,
        "seconds": None if shared else row["seconds"],
        "cut_off": row["cut_off"] == "length",
        "shared": shared,
        "thought_first": thought_first(str(row["prompt"]), str(call.get("text")), call.get("thinking")),
    }


def number(value: float | None) -> float:
    """Return a number; nan for None. Raises `ValueError` if it is nan or infinite."""
    if value is not None and not math.isfinite(value):
        raise ValueError(value)
    return math.nan if value is None else float(value)


def frames_of(traces: Iterable[Trace]) -> dict[str, Frames]:
    """Return the frames of each task of a run that has just ended."""
    rows: dict[str, tuple[list[Record], list[Record]]] = {}
    for trace in traces:
        key, record = trace.answer.key, trace_record(trace)
        samples, calls = rows.setdefault(key.task, ([], []))
        record["output_tokens"] = sum(call.output_tokens for call in trace.calls)
        samples.append({"doc_id": key.doc_id, **sample_row(record)})
        calls += (call_row(key.doc_id, call) for call in record["calls"])
    return {task: frames(*of_task) for task, of_task in sorted(rows.items())}


# --- what was spent ---


@dataclass(frozen=True)
class Spent:
    """Sums over the calls of one model."""

    calls: int
    output_tokens: float
    """nan if the tokens of a call are not known."""
    seconds: float
    """nan if a call is shared. Calls overlap, so their sum is more than the wall time."""
    cut_calls: int
    """Calls that ended at their token limit, or at the end of the context."""


def spent(calls: pd.DataFrame, side: Side) -> Spent:
    """Return what the calls of one model have spent."""
    rows = calls[calls.side == side]
    tokens, seconds = (float(rows[name].sum(skipna=False)) for name in ("output_tokens", "seconds"))
    return Spent(len(rows), tokens, seconds, int(rows.cut_off.sum()))


def wall_s(calls: pd.DataFrame) -> float | None:
    """Return the seconds from the first request to the end of the last call. None: a call is shared, or there is none.
    Of a resumed run, the time between its starts is in it."""
    times = (calls.started_at + calls.seconds).max(skipna=False) - calls.started_at.min(skipna=False)
    return None if math.isnan(times) else float(times)


def wall_s_by_task(tasks: Mapping[str, pd.DataFrame]) -> dict[str, float]:
    """Return the wall time of each task of a run. The time between the ends of two documents belongs to the task of the
    second one, because documents of several tasks are open at the same time. Empty: not known. `tasks`: task -> its
    calls."""
    calls = pd.concat({task: calls for task, calls in tasks.items() if len(calls)}, names=["task"]).reset_index("task")
    ends = calls.started_at + calls.seconds
    if ends.isna().any():
        return {}
    ends = ends.groupby([calls.task, calls.doc_id]).max()
    parts = ends.sort_values().diff().fillna(ends.min() - calls.started_at.min())
    return {str(task): float(seconds) for task, seconds in parts.groupby("task").sum().items()}


# --- the table at the end of a run ---


@dataclass(frozen=True)
class Figures:
    """What a run has counted, of one rank or of all ranks."""

    tasks: Mapping[str, Frames]
    failures: Failures
    resumed: bool
    """Whether earlier processes made a part of the calls, so that the run has no wall time."""
    wall_s: float | None
    """The wall time of answering, without the start of the engines; of the slowest rank. None: not known."""
    ranks: int = 1

    @classmethod
    def of(cls, traces: Sequence[Trace], failures: Failures, resumed: bool) -> "Figures":
        """Return the figures of one rank."""
        tasks = frames_of(traces)
        seconds = wall_s(pd.concat([of_task.calls for of_task in tasks.values()])) if tasks and not resumed else None
        return cls(tasks, failures, resumed, seconds)

    @classmethod
    def merged(cls, ranks: Sequence["Figures"]) -> "Figures":
        """Return the figures of a run from those of its ranks."""
        names = sorted({name for rank in ranks for name in rank.tasks})
        tasks = {
            name: Frames(*map(pd.concat, zip(*(rank.tasks[name] for rank in ranks if name in rank.tasks), strict=True)))
            for name in names
        }
        failures = Failures.merged([rank.failures for rank in ranks])
        walls = [rank.wall_s for rank in ranks if rank.tasks]
        known = [seconds for seconds in walls if seconds is not None]
        slowest = max(known) if known and len(known) == len(walls) else None
        return cls(tasks, failures, any(rank.resumed for rank in ranks), slowest, len(ranks))

    @property
    def samples(self) -> int:
        """The number of answered samples."""
        return sum(len(task.samples) for task in self.tasks.values())

    @property
    def calls(self) -> pd.DataFrame:
        """The calls of all tasks."""
        return pd.concat([frames([], []).calls, *(task.calls for task in self.tasks.values())])


def final_table(figures: Figures, config: Config) -> str:
    """Return the table at the end of a run: for each task its samples, the share of each exit, and the calls, output
    tokens and seconds of each model. Sentences below it tell the wall time and what went wrong.

    A method with a single exit has no columns of exits.
    """
    failed = figures.failures.tasks
    rows = [_row(task, figures, config, failed[task]) for task in sorted({*figures.tasks, *failed})]
    shown = {name for row in rows for name, cell in row.items() if cell is not None}
    headings = [name for name in rows[0] if name in shown]
    table = "\n".join(lines_of(headings, [[_text(row[name]) for name in headings] for row in rows], names=1))
    models = ", ".join(f"{engine.side} {without_password(engine.model)}" for engine in config.engines())
    ranks = f", {figures.ranks} ranks" if figures.ranks > 1 else ""
    options = "".join(f", {name}={value}" for name, value in config.settings.options.items())
    lines = "\n".join(_lines(figures))
    return f"\nmai_cascade method={config.method.name}{options}: {models}{ranks}\n\n{table}\n\n{lines}\n"


def lines_of(headings: Sequence[str], rows: Sequence[Sequence[str]], names: int) -> list[str]:
    """Return a table as lines of text: headings, which may have several lines, and rows. The first columns, `names` of
    them, are aligned to the left."""
    head = list(itertools.zip_longest(*(reversed(heading.split("\n")) for heading in headings), fillvalue=""))[::-1]
    widths = [max(map(len, cells)) for cells in zip(*head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(w) if n < names else cell.rjust(w) for n, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(["", *padded]).rstrip()

    return [line(cells) for cells in (*head, *rows)]


def _text(cell: Any) -> str:
    if cell is None or isinstance(cell, str):
        return cell or ""
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.1f}"


def _row(task: str, figures: Figures, config: Config, failed: int) -> dict[str, Any]:
    """Return the cells of a task by heading. None: a column without any other cell is left out."""
    samples, calls = figures.tasks.get(task) or frames([], [])
    row: dict[str, Any] = {"task": task, "n": len(samples), "failed": failed or None}
    if len(config.method.exits) > 1:
        shares = Counter(samples.exit)
        row |= {
            exit.replace("_", "_\n") + "\n%": 100 * shares[exit] / max(1, len(samples)) for exit in config.method.exits
        }
    if config.transfer == "sparse":
        row["kept\ntokens\n%"] = 100 * samples.kept_tokens.sum() / max(1, samples.scored_tokens.sum())
    for engine in config.engines():
        used = spent(calls, engine.side)
        row |= {
            f"{engine.side}\ncalls": used.calls,
            f"{engine.side}\ntokens": int(used.output_tokens),
            f"{engine.side}\ns": None if math.isnan(used.seconds) else used.seconds,
        }
    return row


def _lines(figures: Figures) -> Iterator[str]:
    """Yield the sentences below the table."""
    calls, failures = figures.calls, figures.failures
    if shared := int(calls.shared.sum()):
        yield (
            f"{shared} of {len(calls)} calls are shared: other runs made them. So their model has no seconds here, and "
            "the run has no wall time."
        )
    elif figures.resumed:
        yield "The run was resumed, so it has no wall time."
    elif (seconds := figures.wall_s) is not None:
        yield f"Wall time {seconds:.1f} s."
    for side in SIDES:
        if cut := spent(calls, side).cut_calls:
            yield f"Cut off at a token limit (`finish_reason` is `length`): {cut} calls of the {side} model."
        if thinking := int(calls.thought_first[calls.side == side].sum()):
            yield f"Short answers with a thinking of the model's own: {thinking} calls of the {side} model."
    if unreadable := sum(int((task.samples.readable == False).sum()) for task in figures.tasks.values()):  # noqa: E712
        yield (
            f"Unreadable: the task's scorer cannot read the final answer of {unreadable} samples. lmms-eval's "
            "MMMU scorer guesses the option of such a multiple-choice answer at random; all other scorers give it 0."
        )
    if failures.count:
        kinds = ", ".join(f"{count} {kind}" for kind, count in failures.kinds.items())
        yield f"{failures.count} samples have no answer and are left out of all scores: {kinds}."
        yield str(failures)
