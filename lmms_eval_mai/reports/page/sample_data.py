"""All samples as compact data for the page: columns of numbers, and texts that are stored once.

`index` has what a list of samples shows. `calls-N` has the calls of run N. `texts-N` are the texts of the calls, in
chunks that a browser decompresses in a few milliseconds each. A text of several runs is in one chunk only.
"""

import base64
import gzip
import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.reports.cascade_tables import RIGHT
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.methods import MODES
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.read import Record, Run, records

CHUNK = 2_000_000
"""Characters of one block of texts."""
LISTED = ("question", "gold", "kind", "answer", "score", "tokens", "exit")
CALLS = ("marks", "text", "call_tokens", "ms", "verifications")
STAGE_CODES = {"short": "s", "think": "h", "stage2": "2", "transfer": "t", "score": "c", "task": "k"}
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "star", "circle-open", "diamond-open", "square-open")


def pack(value: Any) -> str:
    """Return a value as compressed JSON in base64; the page decompresses it. JSON's escapes keep texts that are not
    valid Unicode, such as half a character that a model wrote."""
    return pack_bytes(json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii"))


def pack_bytes(data: bytes) -> str:
    """Return compressed bytes as base64. Equal data give equal texts."""
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode("ascii")


class Words(dict[str, int]):
    """Short texts and their numbers, such as questions and answers. They are kept in memory."""

    def number(self, text: str | None) -> int:
        """Return the number of a text; -1 for None."""
        return -1 if text is None else self.setdefault(text, len(self))


class Texts:
    """Long texts by number. Only digests are kept in memory; the texts are in compressed chunks."""

    def __init__(self, chunk: int = CHUNK) -> None:
        self._numbers: dict[bytes, int] = {}
        self._open: list[str] = []
        self._size = 0
        self._chunk = chunk
        self.chunks: list[str] = []
        self.firsts: list[int] = []
        """The number of the first text of each chunk."""

    def number(self, text: str) -> int:
        """Return the number of a text."""
        key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._numbers)
            self._open.append(text)
            self._size += len(text)
            if self._size >= self._chunk:
                self.close()
        return found

    def close(self) -> None:
        """Compress the open chunk."""
        if self._open:
            self.firsts.append(len(self._numbers) - len(self._open))
            self.chunks.append(pack(self._open))
            self._open, self._size = [], 0


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
    words, texts, look = Words(), Texts(), looks(evidence)
    keys: list[str] = []
    runs = []
    for number, run in enumerate(sample_runs(evidence)):
        benchmark, method = benchmark_name(run.benchmark), evidence.name(run.method)
        changed = effects(evidence, run)
        # The last line of a document counts.
        rows = {one.row["doc_id"]: _row(one, words, texts) for one in records(run)}
        ids = sorted(rows)
        columns = {name: [rows[doc_id][name] for doc_id in ids] for name in LISTED}
        columns |= {"ids": ids, "effect": [changed.get(doc_id, "") for doc_id in ids]}
        key = re.sub(r"[^A-Za-z0-9.]+", "-", f"{benchmark}-{method}").strip("-") or "run"
        keys.append(next(one for one in (key, *(f"{key}-{n}" for n in range(2, number + 3))) if one not in keys))
        about = {"key": keys[-1], "benchmark": benchmark, "images": run.benchmark, "method": method}
        about |= {"short": look[method].short, "mode": run.method.mode}
        runs.append({**about, "columns": columns})
        yield f"calls-{number}", pack({name: [rows[doc_id][name] for doc_id in ids] for name in CALLS})
    texts.close()
    yield from ((f"texts-{number}", chunk) for number, chunk in enumerate(texts.chunks))
    yield "index", pack({"words": [*words], "runs": runs, "firsts": texts.firsts})


def effects(evidence: Evidence, run: Run) -> dict[int, str]:
    """Return "harm" or "rescue" for each document that a transfer changed against the large model's short
    answer, as the table of harm and rescue counts them."""
    samples, before = run.samples, None
    if run.method.mode == "cascade":
        before = evidence.large_short_scores(run)
    elif run.method.mode == "transfer" and (other := evidence.short(run, "large")) is not None:
        samples, theirs = evidence.common(run, other)
        before = theirs.score
    if before is None or before.isna().any():
        return {}
    samples = samples.assign(before=before.groupby(level=0).mean().reindex(samples.index) >= RIGHT)
    samples = samples[(samples.repeat == 0) & (samples.exit == "transfer")]
    changed = samples[(samples.score >= RIGHT) != samples.before]
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


def _row(record: Record, words: Words, texts: Texts) -> dict[str, Any]:
    """Return what the list shows of one sample, and its calls and verifications. Long lists of lists cost memory, so a
    call has three characters (side, stage, and `c` if it was cut off, `s` if it is shared), and a verification three
    numbers (both answers, and 1 if they agree)."""
    row, calls = record.row, record.calls
    checks = [(row["small"], row["large"], row["agree"]), (row["thought"], row["large"], row["agree_think"])]
    verified = [(words.number(a), words.number(b), int(agree)) for a, b, agree in checks if agree is not None]
    return {
        "question": words.number(record.question),
        "gold": words.number(row["target"]),
        "kind": words.number(row["kind"]),
        "answer": words.number(record.answer),
        "score": None if math.isnan(row["score"]) else round(row["score"], 3),
        "tokens": None if math.isnan(row["output_tokens"]) else row["output_tokens"],
        "exit": row["exit"] or "",
        "marks": "".join(f"{call['side'][0]}{STAGE_CODES.get(call['stage'], 'k')}{_end(call)}" for call in calls),
        "text": [texts.number(call["text"]) for call in calls],
        "call_tokens": [call["output_tokens"] for call in calls],
        "ms": [None if math.isnan(call["seconds"]) else round(1000 * call["seconds"], 1) for call in calls],
        "verifications": [number for one in verified for number in one],
    }


def _end(call: dict[str, Any]) -> str:
    return "s" if call["shared"] else "c" if call["cut_off"] else "-"
