"""A trace as JSON values, as lmms-eval's samples file and the server's replies hold it (docs/output.md)."""

from typing import Any

from lmms_eval_mai.contract import SIDES, Call
from lmms_eval_mai.method.methods import steps_of
from lmms_eval_mai.method.trace import Trace

NOT_ALWAYS_KNOWN = ("answer_logprob", "proposed_tokens", "accepted_tokens", "target_calls")
"""How sure the model was of its answer, and drafted tokens. Left out if the engine does not report them."""

SELECTION = ("layer", "scored_tokens", "kept_tokens", "transferred_tokens", "share", "text")


def trace_record(trace: Trace) -> dict[str, Any]:
    """Return a trace as JSON values."""
    settings = trace.settings
    record: dict[str, Any] = {
        "exit": trace.exit,
        "readable": trace.readable,
        "parsed": trace.answer.parsed,
        "calls": [_call_record(call) for call in trace.calls],
        **{name: value for name in ("min_confidence", "category") if (value := getattr(trace, name)) is not None},
        **({"images": list(trace.images)} if trace.images else {}),
        **({"chose_threshold": True} if trace.chose_threshold else {}),
        "method": settings.method.name,
        "steps": steps_of(settings.method),
        "options": dict(settings.options),
        **{side: model for side in SIDES if (model := getattr(settings, side))},
        "engines": dict(settings.engines),
    }
    if trace.selection is not None:
        record["selection"] = {name: getattr(trace.selection, name) for name in SELECTION}
    for call, prompt in zip(record["calls"], trace.prompts, strict=False):
        call["messages"] = list(prompt)
    return record


def _call_record(call: Call) -> dict[str, Any]:
    times = {name: getattr(call, name) for name in ("queued_s", "ttft_s", "total_s", "started_at")}
    return {
        "side": call.key.side,
        "prompt": call.key.prompt,
        **({"of": call.key.of} if call.key.of else {}),
        "text": call.text,
        "parsed": call.parsed,
        "finish_reason": call.finish_reason,
        "prompt_tokens": call.prompt_tokens,
        **({} if call.image_tokens is None else {"image_tokens": call.image_tokens}),
        "cached_tokens": call.cached_tokens,
        "output_tokens": call.output_tokens,
        "answer_tokens": call.answer_tokens,
        **{name: value for name in NOT_ALWAYS_KNOWN if (value := getattr(call, name)) is not None},
        **({"dropped_tokens": call.dropped_tokens} if call.dropped_tokens else {}),
        # A shared call has no times.
        **{name: None if s is None or call.shared else round(s, 6) for name, s in times.items()},
        **({"shared": True} if call.shared else {}),
    }
