"""A trace as JSON values, as lmms-eval's samples file and the server's replies hold it (docs/output.md)."""

from typing import Any

from lmms_eval_mai.contract import Call
from lmms_eval_mai.paper.sample import Trace

NOT_ALWAYS_KNOWN = ("answer_logprob", "proposed_tokens", "accepted_tokens", "target_calls")
"""How sure the model was of its answer, and drafted tokens. Left out if the engine does not report them."""

SELECTION = ("layer", "scored_tokens", "kept_tokens", "transferred_tokens", "share", "text")


def trace_record(trace: Trace) -> dict[str, Any]:
    """Return the exit, the parsed answers and the calls of a trace."""
    record: dict[str, Any] = {
        "exit": trace.exit,
        "readable": trace.readable,
        "answers": [{"small": v.small, "large": v.large, "agree": v.agree} for v in trace.verifications],
        "calls": [_call_record(call) for call in trace.calls],
        **{
            name: value
            for name in ("min_confidence", "parsed", "category")
            if (value := getattr(trace, name)) is not None
        },
        **({"images": list(trace.images)} if trace.images else {}),
    }
    before_thinking = any((call.key.side, call.key.stage) == ("small", "short") for call in trace.calls)
    if trace.exit == "transfer" and len(trace.verifications) == before_thinking:
        record["thought"] = trace.thought  # Full RT, or second_check=off; null: the answer cannot be read
    if trace.selection is not None:
        record["selection"] = {name: getattr(trace.selection, name) for name in SELECTION}
    for call, prompt in zip(record["calls"], trace.prompts, strict=False):
        call["prompt"] = list(prompt)
    return record


def _call_record(call: Call) -> dict[str, Any]:
    times = {name: getattr(call, name) for name in ("queued_s", "ttft_s", "total_s", "started_at")}
    return {
        "side": call.key.side,
        "stage": call.key.stage,
        "text": call.text,
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
