"""All samples as compact data for the page: columns of numbers, and texts that are stored once.

`index` has what a list of samples shows. `calls-N` has the calls of run N. `texts-N` are the texts of the calls, in
chunks that a browser decompresses in a few milliseconds each. A text of several runs is in one chunk only.
"""

import base64
import gzip
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pandas as pd

from lmms_eval_mai.reports.cascade_tables import transferred
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.methods import MODES
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.read import Run, records

CHUNK = 2_000_000
"""Characters of one block of texts."""
STAGE_CODES = {"short": "s", "think": "h", "stage2": "2", "transfer": "t", "score": "c", "task": "k"}
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "star", "circle-open", "diamond-open", "square-open")


def pack(value: Any) -> str:
    """Return a value as compressed JSON in base64; the page decompresses it. JSON's escapes keep texts that are not
    valid Unicode, such as half a character that a model wrote."""
    return pack_bytes(json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii"))


def pack_bytes(data: bytes) -> str:
    """Return compressed bytes as base64. Equal data give equal texts."""
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode("ascii")


class Texts(dict[str, int]):
    """Texts and their numbers. Equal texts have one number."""

    def number(self, text: str | None) -> int:
        """Return the number of a text; -1 for None."""
        return -1 if text is None else self.setdefault(text, len(self))

    def chunks(self, size: int = CHUNK) -> list[list[str]]:
        """Return all texts in the order of their numbers. A chunk ends when it has `size` characters."""
        found: list[list[str]] = [[]]
        length = 0
        for text in self:
            if length >= size:
                found.append([])
                length = 0
            found[-1].append(text)
            length += len(text)
        return found


def sample_runs(evidence: Evidence) -> list[Run]:
    """Return the runs whose samples the page shows: the cascades first, then Full RT, then single models."""
    return [
        run
        for mode in reversed(MODES)
        for run in evidence.of(mode)
        if not run.derived and run.samples_file is not None and len(run.samples)
    ]


def sample_blocks(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield the name and the packed data of each block."""
    words, texts, look = Texts(), Texts(), looks(evidence)
    keys: list[str] = []
    runs = []
    for number, run in enumerate(sample_runs(evidence)):
        benchmark, method = benchmark_name(run.benchmark), evidence.name(run.method)
        columns, calls = _columns(run, effects(evidence, run), words, texts)
        key = re.sub(r"[^A-Za-z0-9.]+", "-", f"{benchmark}-{method}").strip("-")
        keys.append(f"{key}-{number}" if key in keys else key)
        about = {"key": keys[-1], "benchmark": benchmark, "images": run.benchmark, "method": method}
        about |= {"short": look[method].short, "mode": run.method.mode}
        runs.append({**about, "columns": columns})
        yield f"calls-{number}", pack(calls)
    chunks = texts.chunks()
    yield from ((f"texts-{number}", pack(chunk)) for number, chunk in enumerate(chunks))
    firsts = [*accumulate(map(len, chunks[:-1]), initial=0)]  # the number of the first text of each chunk
    yield "index", pack({"words": [*words], "runs": runs, "firsts": firsts})


def effects(evidence: Evidence, run: Run) -> dict[int, str]:
    """Return "harm" or "rescue" for each document that a transfer changed against the large model's short answer."""
    answers = None if run.method.mode == "alone" else transferred(evidence, run)
    if answers is None:
        return {}
    changed = answers[(answers.repeat == 0) & (answers.after != answers.before)]
    return {doc_id: "harm" if was_right else "rescue" for doc_id, was_right in changed.before.items()}


@dataclass(frozen=True, slots=True)
class Look:
    """How figures show a method."""

    role: str
    """`mai`, `full-rt`, `large`, `small` or `other`: the name of its colour."""
    short: str
    """A short name: the role if only one model has it, else the model; and the prompt."""
    symbol: str


def looks(evidence: Evidence) -> dict[str, Look]:
    """Return the look of each method by its name. Methods of one role differ in their symbols."""
    methods = [run.method for mode in MODES for run in evidence.of(mode)]
    pairs = [method for method in methods if method.mode != "alone"]
    sides = dict.fromkeys((pair.small for pair in pairs), "small") | dict.fromkeys(
        (pair.model for pair in pairs), "large"
    )
    of_mode = {"cascade": "mai", "transfer": "full-rt"}
    roles = {method: of_mode.get(method.mode) or sides.get(method.model, "other") for method in methods}
    found = {}
    for method, role in roles.items():
        same = [other for other in roles if roles[other] == role]
        name = {"mai": "MAI", "full-rt": "Full RT"}.get(role, role)
        if role == "other" or (method.mode == "alone" and len({other.model for other in same}) > 1):
            model = evidence.label(method.model)
            name = model if len(model) <= 16 else f"{model[:7]}…{model[-7:]}"
        prompt = "own prompt" if method.variant is None else method.prompt
        symbol = SYMBOLS[same.index(method) % len(SYMBOLS)]
        found[evidence.name(method)] = Look(role, f"{name} {prompt}{' …' if method.options else ''}", symbol)
    return found


def _columns(run: Run, effect: dict[int, str], words: Texts, texts: Texts) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns of a run for the list, and those of its calls and verifications, which have one list for each
    document. A call has three characters: side, stage, and `c` if it was cut off, `s` if it is shared. A verification
    has three numbers: both answers, and 1 if they agree."""
    samples, calls = run.samples[run.samples.repeat == 0], run.calls[run.calls.repeat == 0]
    read = {}
    for one in records(run):  # the last line of a document counts
        numbers = tuple(texts.number(call["text"]) for call in one.calls)
        read[one.row["doc_id"]] = words.number(one.question), words.number(one.answer), numbers
    ids = samples.index.tolist()
    bounds = [*np.searchsorted(calls.doc_id, ids).tolist(), len(calls)]

    def by_document(values: list[Any]) -> list[Any]:
        return [values[start:end] for start, end in pairwise(bounds)]

    end = np.select([calls.shared, calls.cut_off], ["s", "c"], "-")
    marks = calls.side.str[0] + calls.stage.map(STAGE_CODES).fillna("k") + end
    checks = samples[["small", "large", "agree", "thought", "large", "agree_think"]].to_numpy(object).reshape(-1, 2, 3)
    listed = {
        "ids": ids,
        "question": [read[doc_id][0] for doc_id in ids],
        "gold": [words.number(text) for text in samples.target],
        "kind": [words.number(text) for text in samples.kind],
        "answer": [read[doc_id][1] for doc_id in ids],
        "score": _plain(samples.score.round(3)),
        "tokens": _plain(samples.output_tokens),
        "exit": samples.exit.fillna("").tolist(),
        "effect": [effect.get(doc_id, "") for doc_id in ids],
    }
    detail = {
        "marks": ["".join(part) for part in by_document(marks.tolist())],
        "text": [read[doc_id][2] for doc_id in ids],
        "call_tokens": by_document(calls.output_tokens.tolist()),
        "ms": by_document(_plain((1000 * calls.seconds).round(1))),
        "verifications": [
            [
                number
                for a, b, agree in rows
                if agree is not None
                for number in (words.number(a), words.number(b), int(agree))
            ]
            for rows in checks
        ],
    }
    return listed, detail


def _plain(numbers: pd.Series) -> list[Any]:
    """Return numbers for JSON: whole ones without their zeros, and None if one is not known."""
    return [None if math.isnan(one) else int(one) if one.is_integer() else one for one in numbers.tolist()]
