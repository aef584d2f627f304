"""All samples as compact data for the page: columns of numbers, and texts that are stored once.

`index` has what a list of samples shows. `calls-N` has the calls of run N. `texts-N` are the texts of the calls, in
chunks that a browser decompresses in a few milliseconds each. A text of several runs is in one chunk only.
"""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.reports import reading
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.more_tables.exits import is_right, large_short
from lmms_eval_mai.reports.more_tables.methods import MODES
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.records import Method, Run, SampleRecord

CHUNK = 2_000_000
"""Characters of one block of texts."""
EXIT_CODES = {"agree_short": "a", "agree_think": "b", "transfer": "t", "small": "s", "large": "l", None: "-"}
ROLES = {"mai": "MAI", "full-rt": "Full RT", "large": "large", "small": "small"}
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "star", "circle-open", "diamond-open", "square-open")
STAGE_CODES = {"short": "s", "think": "h", "stage2": "2", "transfer": "t", "score": "c", "task": "k"}


def pack(value: Any) -> str:
    """Return a value as compressed JSON in base64; the page decompresses it. JSON's escapes keep texts that are not
    valid Unicode, such as half a character that a model wrote."""
    return pack_bytes(json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii"))


def pack_bytes(data: bytes) -> str:
    """Return compressed bytes as base64. Equal data give equal texts."""
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode("ascii")


class Words:
    """Short texts by number, such as questions and answers. They are kept in memory."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str | None) -> int:
        """Return the number of a text; -1 for None."""
        return -1 if text is None else self._numbers.setdefault(text, len(self._numbers))

    def all(self) -> list[str]:
        """Return all texts in the order of their numbers."""
        return list(self._numbers)


class Texts:
    """Long texts by number. Only their digests are kept in memory; the texts are in compressed chunks."""

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
        if not run.derived and run.samples_file is not None and run.documents
    ]


def sample_blocks(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield the name and the packed data of each block."""
    words, texts, short = Words(), Texts(), looks(evidence)
    names: set[str] = set()
    runs = []
    for number, run in enumerate(sample_runs(evidence)):
        columns, calls = _columns(run, effects(evidence, run), words, texts)
        about = {
            "key": _unique(f"{benchmark_name(run.benchmark)}-{evidence.name(run.method)}", names),
            "benchmark": benchmark_name(run.benchmark),
            "images": run.benchmark,
            "method": evidence.name(run.method),
            "short": short[evidence.name(run.method)].short,
            "mode": run.method.mode,
        }
        runs.append(about | {"columns": columns})
        yield f"calls-{number}", pack(calls)
    texts.close()
    yield from ((f"texts-{number}", chunk) for number, chunk in enumerate(texts.chunks))
    yield "index", pack({"words": words.all(), "runs": runs, "firsts": texts.firsts})


def effects(evidence: Evidence, run: Run) -> dict[int, str]:
    """Return "h" (harm) or "r" (rescue) for each document that a transfer changed against the large model's short
    answer, as the table of harm and rescue counts them."""
    before = large_short(evidence, run) if run.method.mode in ("cascade", "transfer") else None
    if before is None:
        return {}
    found = {}
    for document, short in zip(*evidence.common(run, before), strict=True):
        now, then = is_right(document.score), is_right(short.score)
        if now != then and document.exit == "transfer":
            found[document.doc_id] = "r" if now else "h"
    return found


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
    pairs = [method for _, method in evidence.runs if method.mode != "alone"]
    large, small = {method.model for method in pairs}, {method.small for method in pairs}
    methods = [run.method for mode in MODES for run in evidence.of(mode)]
    roles = {method: _role(method, large, small) for method in methods}
    found: dict[str, Look] = {}
    for method, role in roles.items():
        those = [other for other, its_role in roles.items() if its_role == role]
        kind = ROLES.get(role, "")
        if not kind or (method.mode == "alone" and len({other.model for other in those}) > 1):
            model = evidence.label(method.model)
            kind = model if len(model) <= 16 else f"{model[:7]}…{model[-7:]}"
        prompt = "own prompt" if method.variant is None else method.prompt
        symbol = SYMBOLS[those.index(method) % len(SYMBOLS)]
        found[evidence.name(method)] = Look(role, f"{kind} {prompt}{' …' if method.options else ''}", symbol)
    return found


def _role(method: Method, large: Collection[str], small: Collection[str]) -> str:
    if method.mode != "alone":
        return "mai" if method.mode == "cascade" else "full-rt"
    return "large" if method.model in large else "small" if method.model in small else "other"


def _columns(run: Run, effect: dict[int, str], words: Words, texts: Texts) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns of a run for the list, and those of its calls. The last line of a document counts."""
    rows = {record.document.doc_id: _row(record, words, texts) for record in reading.samples(run)}
    ids = sorted(rows)
    listed = [rows[doc_id][0] for doc_id in ids]
    calls = [call for doc_id in ids for call in rows[doc_id][1]]
    verified = [one for doc_id in ids for one in rows[doc_id][2]]
    columns: dict[str, Any] = {name: [row[number] for row in listed] for number, name in enumerate(LISTED)}
    columns |= {
        "ids": ids,
        "exit": "".join(row[-1] for row in listed),
        "effect": "".join(effect.get(doc_id, "-") for doc_id in ids),
    }
    detail: dict[str, Any] = {
        "calls": [len(rows[doc_id][1]) for doc_id in ids],
        "verifications": [len(rows[doc_id][2]) for doc_id in ids],
        "small": [one[0] for one in verified],
        "large": [one[1] for one in verified],
        "agree": "".join(one[2] for one in verified),
        "marks": "".join(call[0] for call in calls),
    }
    detail |= {name: [call[number + 1] for call in calls] for number, name in enumerate(CALL)}
    return columns, detail


LISTED = ("question", "gold", "kind", "answer", "score", "tokens")
CALL = ("text", "tokens", "ms")
Row = tuple[tuple[Any, ...], list[tuple[Any, ...]], list[tuple[int, int, str]]]


def _row(record: SampleRecord, words: Words, texts: Texts) -> Row:
    """Return one sample: its cells in the list, its calls and its verifications. The marks of a call are three
    characters: side, stage, and `c` if the call was cut off, `s` if it is shared."""
    document = record.document
    listed = (
        words.number(record.question),
        words.number(document.target),
        words.number(document.kind),
        words.number(record.answer),
        None if document.score is None else round(document.score, 3),
        document.output_tokens,
        EXIT_CODES.get(document.exit, "-"),
    )
    calls = [
        (
            call.side[0] + STAGE_CODES.get(call.stage, "k") + ("s" if call.shared else "c" if call.cut_off else "-"),
            texts.number(call.text),
            call.output_tokens,
            None if call.seconds is None else round(1000 * call.seconds, 1),
        )
        for call in record.calls
    ]
    verified = [
        (words.number(one.small), words.number(one.large), "y" if one.agree else "n") for one in document.verifications
    ]
    return listed, calls, verified


def _unique(name: str, names: set[str]) -> str:
    """Return a name for links, with letters, digits, dots and dashes."""
    base = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-") or "run"
    found, number = base, 2
    while found in names:
        found, number = f"{base}-{number}", number + 1
    names.add(found)
    return found
