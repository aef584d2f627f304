"""The call that an output of vLLM becomes, and the replica that makes it."""

import hashlib
import time
from typing import Any

from lmms_eval_mai.contract import Call, CallKey, Prompt, Sampling, TokenLogprobs


def sampling_params(sampling: Sampling) -> Any:
    """Return vLLM's `SamplingParams`, with which vLLM returns an answer when it is complete, with the log-probability
    of each token before temperature and penalties."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        seed=sampling.seed,
        stop=list(sampling.stop),
        ignore_eos=sampling.ignore_eos,
        logprobs=0,  # of the sampled token only
        flat_logprobs=True,  # lists instead of two objects for each token
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def to_call(prompt: Prompt, engine_input: Any, result: Any, requested_at: float) -> Call:
    """Return the call of vLLM's finished output. `requested_at`: when it was requested, by `time.perf_counter`."""
    total_s = time.perf_counter() - requested_at
    output, metrics = result.outputs[0], result.metrics
    drafts = output.spec_decode_metrics
    images = engine_input.get("mm_placeholders", {}).get("image", ())
    return Call(
        key=prompt.key,
        text=output.text,
        finish_reason=output.finish_reason,
        prompt_tokens=len(result.prompt_token_ids),
        cached_tokens=result.num_cached_tokens or 0,
        output_tokens=len(output.token_ids),
        # vLLM's `..._ts` are monotonic times of the engine's process: only their differences have a meaning here.
        queued_s=max(0.0, metrics.scheduled_ts - metrics.queued_ts),
        # vLLM counts from the moment at which the prompt was given to its renderer.
        ttft_s=min(metrics.first_token_latency, total_s),
        total_s=total_s,
        image_tokens=sum(place.get_num_embeds() for place in images),
        proposed_tokens=None if drafts is None else drafts.num_draft_tokens,
        accepted_tokens=None if drafts is None else sum(n * steps for n, steps in enumerate(drafts.histogram)),
        logprobs=_logprobs(output.logprobs),
    )


def _logprobs(found: Any) -> TokenLogprobs | None:
    """Return the log-probability of each sampled token. vLLM puts it before those of other tokens."""
    if not found:
        return None
    first = found.start_indices
    texts = tuple(found.decoded_tokens[number] or "" for number in first)
    return TokenLogprobs(texts, tuple(found.logprobs[number] for number in first))


def replica_of(key: CallKey, replicas: int) -> int | None:
    """Return the number of the replica that gets all calls of this call's sample, also when the run is resumed. None:
    there is one replica.

    vLLM balances calls by load. The later calls of a sample would then miss the prefix cache of the replica that
    answered the first one. Samples are distributed evenly.
    """
    if replicas <= 1:
        return None
    sample = f"{key.task} {key.doc_id} {key.repeat}"
    return int.from_bytes(hashlib.blake2b(sample.encode(), digest_size=8).digest()) % replicas
