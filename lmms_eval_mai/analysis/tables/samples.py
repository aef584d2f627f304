"""The samples of the page: each answer of a run with its question, the checks that led to its exit, and its calls."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lmms_eval_mai.analysis.runs.folders import FinishedRun
from lmms_eval_mai.analysis.runs.records import Record, records
from lmms_eval_mai.analysis.runs.replay import call_names
from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.runs.setups import FAMILIES
from lmms_eval_mai.method.methods import MAI, Stop
from lmms_eval_mai.method.walk import CallName

RIGHT = 0.5
"""A score counts as right from here on. ANLS is the only score between 0 and 1."""
ENDINGS = 3
"""Format sentences that a task may have: for words, letters, and numbers or others."""
ASKED = {"simple": "S", "explain": "E", "think": "R", "native": "N", "task": "own prompt", "stage2": "second stage"}
"""What a call asks -> its name beside that of the model."""


def shown_runs(runs: Runs) -> list[FinishedRun]:
    """Return the runs whose samples the page shows: MAI first, then other cascades, single models last."""
    in_order = [run for family in reversed(FAMILIES) for run in runs.select(family)]
    shown = [run for run in in_order if not run.is_replay and len(run.samples)]
    return sorted(shown, key=lambda run: run.setup.method != MAI)


def right_of(runs: Runs, benchmark: str) -> dict[str, Mapping[int, bool]]:
    """Return of each row of a benchmark whether each of its documents with a score is right."""
    scores = {runs.name(run.setup): run.samples.score.dropna() for run in runs.select(benchmark=benchmark)}
    return {name: (known >= RIGHT).to_dict() for name, known in scores.items() if len(known)}


def samples(run: FinishedRun, images: Mapping[int, int]) -> dict[str, Any]:
    """Return the answers of a run by document, and the `endings` of its questions, such as a format sentence, which are
    left out of them. `images`: document -> the number of its image in the block of images."""
    by_document = {record.row["doc_id"]: record for record in records(run.samples_file, run.metrics) if record}
    endings = _endings([record.question for record in by_document.values()])
    shown = []
    for doc_id, record in sorted(by_document.items()):
        question, _, ending = record.question.rpartition("\n")
        question = question if ending in endings else record.question
        shown.append({"image": images.get(doc_id)} | _sample(run, record, question))
    return {"endings": endings, "samples": shown}


def _endings(questions: Sequence[str]) -> list[str]:
    """Return the last lines that questions share: all end with one of these few, each of which ends several."""
    numbers = Counter(
        ending if question else None for question, _, ending in (one.rpartition("\n") for one in questions)
    )
    is_shared = None not in numbers and len(numbers) <= ENDINGS and min(numbers.values(), default=0) > 1
    return [ending for ending in numbers if ending is not None] if is_shared else []


def _sample(run: FinishedRun, record: Record, question: str) -> dict[str, Any]:
    row, score = record.row, record.row["score"]
    is_scored = not math.isnan(score)
    facts = {"gold answer": row["target"], "scored answer": record.answer, "kind of question": row["category"] or ""}
    if is_scored:
        facts["score"] = f"{score:g}"
    return {
        "doc_id": row["doc_id"],
        "exit": row["exit"] or "",
        "answer": ("right" if score >= RIGHT else "wrong") if is_scored else "",
        "question": question,
        "checks": [*_checks(run, record)],
        "facts": {name: fact for name, fact in facts.items() if fact},
        "calls": [
            {
                "about": f"{_asked(call['side'], call['prompt'])}: {call['output_tokens']:,} tokens"
                + ("" if call.get("shared") else f", {call['total_s']:.3f} s")
                + {"length": ", cut off", "repetition": ", repeats itself"}.get(call["finish_reason"], "")
                + ("; no answer" if call.get("parsed") is None else f"; answer: {call['parsed']}"),
                "text": "\n\n".join(filter(None, (call.get("thinking"), call["text"]))),
            }
            for call in record.calls
        ],
    }


def _asked(side: str, prompt: str) -> str:
    """Return the name of a call, such as `small R` or `large transfer`."""
    return f"{side} {ASKED.get(prompt, prompt)}"


def _checks(run: FinishedRun, record: Record) -> Iterator[str]:
    """Yield what each stop of the method looked at, up to the one at which the sample finished. A method with a single
    exit checks nothing. A method that is a function may lack calls."""
    method, exit = run.setup.method, record.row["exit"]
    names = {name: calls.answer for name, calls in call_names(method, run.setup).items()}
    calls = {CallName(call["side"], call["prompt"], call.get("of") or ""): call for call in record.calls}

    def looked_at(stop: Stop) -> Iterator[str]:
        for ask in dict.fromkeys((*stop.agree, *filter(None, [stop.sure]))):
            call = calls.get(names[ask], {})
            answer = call.get("parsed")
            shown = f"{_asked(names[ask].side, names[ask].prompt)} {'no answer' if answer is None else f'“{answer}”'}"
            if ask == stop.sure and (logprob := call.get("answer_logprob")) is not None:
                least = stop.min_confidence or record.trace.get("min_confidence")
                shown += f" with probability {math.exp(logprob):.3f}, threshold {least}"
            yield shown

    if len(method.stops) > 1 and exit in method.exits:
        for stop in method.stops[: method.exits.index(exit) + 1]:
            mark = "✓" if stop.exit == exit else "✗"
            yield f"{mark} {stop.exit}: {', '.join(looked_at(stop)) or 'no check, always taken'}"
