"""A trace as JSON values, as lmms-eval's samples file and the server's replies hold it (docs/output.md)."""

from typing import Any

from pydantic import TypeAdapter

from lmms_eval_mai.contract import CALL, SIDES, Call
from lmms_eval_mai.method.methods import steps_of
from lmms_eval_mai.method.sparse import Selection
from lmms_eval_mai.method.trace import Trace

SELECTION = TypeAdapter(Selection)


def trace_record(trace: Trace) -> dict[str, Any]:
    """Return a trace as JSON values. What is not known is left out."""
    settings = trace.settings
    known = {name: value for name in ("min_confidence", "category") if (value := getattr(trace, name)) is not None}
    known |= {"parsed": parsed} if (parsed := trace.answer.parsed) is not None else {}
    record: dict[str, Any] = {
        "exit": trace.exit,
        "readable": trace.readable,
        "calls": [call_record(call) for call in trace.calls],
        **known,
        "images": list(trace.images),
        "chose_threshold": trace.chose_threshold,
        "method": settings.method.name,
        "steps": steps_of(settings.method),
        "options": dict(settings.options),
        **{side: model for side in SIDES if (model := getattr(settings, side))},
        "engines": dict(settings.engines),
        "version": settings.version,
    }
    if (selection := trace.selection) is not None:
        record["selection"] = SELECTION.dump_python(selection, exclude={"positions"}, exclude_none=True)
        record["selection"]["kept_tokens"] = selection.kept_tokens
    for call, prompt in zip(record["calls"], trace.prompts, strict=False):
        call["messages"] = list(prompt)
    return record


def call_record(call: Call) -> dict[str, Any]:
    """Return a call as JSON values. A shared call has no times."""
    no_times = {"total_s"} if call.shared else set()
    fields = CALL.dump_python(call, exclude={"key", "logprobs", "attention", *no_times}, exclude_none=True)
    of = {"of": call.key.of} if call.key.of else {}
    return {"side": call.key.side, "prompt": call.key.prompt, **of, **fields}
