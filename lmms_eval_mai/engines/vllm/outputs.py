"""A prompt for vLLM's engine, and the call that its output becomes."""

import time
from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.contract import Call, Prompt


@dataclass(frozen=True)
class PreparedPrompt:
    """A prompt in the form that vLLM's engine takes."""

    engine_input: Any
    seconds: float
    """How long the preparation took. It is part of the call's time."""


def to_call(prompt: Prompt, prepared: PreparedPrompt, result: Any, text: str, submitted_at: float) -> Call:
    """Return the call of vLLM's finished output. `submitted_at`: time on the clock of `time.perf_counter`."""
    total_s = time.perf_counter() - submitted_at
    output, metrics = result.outputs[0], result.metrics
    # vLLM's times are monotonic stamps of the engine's process: only their differences have a meaning here.
    decoding_s = metrics.last_token_ts - metrics.first_token_ts
    drafts = output.spec_decode_metrics
    return Call(
        key=prompt.key,
        text=text,
        finish_reason=output.finish_reason,
        prompt_tokens=len(result.prompt_token_ids),
        cached_tokens=result.num_cached_tokens or 0,
        output_tokens=len(output.token_ids),
        queued_s=max(0.0, metrics.scheduled_ts - metrics.queued_ts),
        ttft_s=max(0.0, total_s - decoding_s),
        total_s=total_s,
        image_tokens=prepared.engine_input.image_tokens,
        proposed_tokens=None if drafts is None else drafts.num_draft_tokens,
        accepted_tokens=None if drafts is None else sum(n * steps for n, steps in enumerate(drafts.histogram)),
    )
