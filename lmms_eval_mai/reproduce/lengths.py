"""The expected lengths of calls before a run: from the calls of an earlier command, or from the paper."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reports import paper_numbers
from lmms_eval_mai.reports.paper_tables.alone import TOKEN_TABLES
from lmms_eval_mai.reproduce.calls import PlannedCall
from lmms_eval_mai.reproduce.folder import CALLS
from lmms_eval_mai.reproduce.plan import Run

PROMPT_TOKENS = 320
"""An image of 512 x 512 pixels with 64 query tokens (Table 3)."""


@dataclass(frozen=True)
class Length:
    """The tokens of a call: averages over documents."""

    prompt_tokens: float
    output_tokens: float
    cached_tokens: float = 0.0


@dataclass(frozen=True)
class Lengths:
    """The lengths of the calls of a plan."""

    measured: Mapping[tuple[str, PlannedCall], Length] = field(default_factory=dict)
    """Benchmark or other task, and call -> its length in an earlier command."""
    folder: Path | None = None
    """The --output_path of that command."""

    def of(self, run: Run, call: PlannedCall) -> Length | None:
        """Return the length of a call of a run. None: it is not known."""
        return self.measured.get((run.subject.name, call)) or _of_paper(run.subject.benchmark, call)

    def source(self) -> str:
        """Return a sentence for people."""
        paper = f"the averages of Tables 5 and 13 of the paper, with prompts of {PROMPT_TOKENS} tokens and the thinking"
        if not self.measured:
            return f"Lengths of the calls: {paper}."
        return f"Lengths of the calls: the averages in {self.folder}. Calls that are not there have {paper}."


def read(folder: Path, runs: Sequence[Run]) -> Lengths:
    """Read the lengths of all calls that an earlier `lmms-eval-mai reproduce` made for these runs. Raises
    `ArgumentError` if the folder has no file of calls."""
    file = folder / CALLS
    calls: dict[tuple[str, str, str], tuple[str, PlannedCall]] = {
        (run.name, call.side, call.stage): (run.subject.name, call)
        for run in runs
        for call in (*run.calls.certain, *run.calls.possible)
    }
    sums: dict[tuple[str, PlannedCall], list[int]] = {}
    try:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                if (found := _line(line)) is not None and (key := calls.get(found[0])) is not None:
                    before = sums.setdefault(key, [0] * 4)
                    sums[key] = [a + b for a, b in zip(before, (1, *found[1]), strict=True)]
    except OSError as error:
        raise ArgumentError(
            f"--lengths {folder} has no calls ({error.strerror}). Give the --output_path of an earlier "
            "`lmms-eval-mai reproduce`."
        ) from None
    return Lengths(
        {key: Length(*(total / number for total in totals)) for key, (number, *totals) in sums.items()}, folder
    )


def _line(line: str) -> tuple[tuple[str, str, str], tuple[int, int, int]] | None:
    """Return the run, side and stage of a call, and its prompt, output and cached tokens. None: another line, or one
    that is damaged."""
    try:
        record = json.loads(line)
        call = record["call"]
        _, _, _, side, stage = record["key"]
        tokens = (int(call["prompt_tokens"]), int(call["output_tokens"]), int(call.get("cached_tokens") or 0))
        return (record["run"], side, stage), tokens
    except (ValueError, TypeError, KeyError):
        return None


def _of_paper(benchmark: str | None, call: PlannedCall) -> Length | None:
    """Return the length of a call with the output tokens of the paper's Table 5 or 13. None: the paper lacks it."""
    thinking = _output_tokens(benchmark, call.thinking) if call.thinking else 0.0
    output = 1.0 if call.stage == "score" else _output_tokens(benchmark, call)
    if thinking is None or output is None:
        return None
    return Length(PROMPT_TOKENS + thinking, output)


def _output_tokens(benchmark: str | None, call: PlannedCall) -> float | None:
    """Return the output tokens of the paper. Answers after a thinking are as long as those with the Simple prompt."""
    family, name = paper_numbers.family(call.model) or ("", "")
    if family not in TOKEN_TABLES or benchmark is None:
        return None
    prompt = call.prompt if call.stage == "think" else "S"
    cell = paper_numbers.cell(TOKEN_TABLES[family], name, benchmark, prompt)
    return None if cell is None else cell.value
