"""Arguments, penalties, log-probabilities and stopping of Hugging Face's `generate`, and speculative decoding.

In speculative decoding a smaller model, the assistant, drafts tokens, and the model itself, the target, checks them
(Table 12 and Appendix B.4 of the paper).
"""

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lmms_eval_mai.contract import Call, Sampling
from lmms_eval_mai.engines.logs import is_debug
from lmms_eval_mai.engines.transformers.inputs import on_device

ASSISTED_DECODING_WARNINGS = ("Passing `generation_config` together with", "A custom logits processor of type")
"""How two harmless warnings begin. transformers' assisted decoding causes them: it calls itself with such arguments."""


class StopWhenCancelled:
    """A stopping criterion of transformers. It ends the rows of cancelled calls, and records the time of the first
    token."""

    def __init__(self, answers: Sequence[Any]) -> None:
        """`answers`: one future per row. It is done if the call was cancelled or the engine was closed."""
        self._answers = answers
        self.first_token_at: float | None = None

    def __call__(self, input_ids: Any, scores: Any, **more: Any) -> Any:
        import torch

        self.first_token_at = self.first_token_at or time.perf_counter()
        return torch.tensor([answer.done() for answer in self._answers], device=input_ids.device)


class StopAtTexts:
    """A stopping criterion of transformers. It ends a row when its answer contains a stop text. `batching.to_call` cuts
    the answer there.

    transformers has such a criterion too, but that one reads the prompt as well and prepares the whole vocabulary.
    """

    def __init__(self, tokenizer: Any, prompt_length: int, texts: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._checked = prompt_length
        self._prompt_length = prompt_length
        self._texts = texts
        # A token has at least one byte, so a stop text lies within this number of tokens. A few more are read, because
        # the first characters of a part may differ from those in the whole answer.
        self._window = max(len(text.encode()) for text in texts) + 8

    def __call__(self, input_ids: Any, scores: Any, **more: Any) -> Any:
        import torch

        start = max(self._prompt_length, self._checked - self._window)
        self._checked = input_ids.shape[1]
        ends = self._tokenizer.batch_decode(input_ids[:, start:], skip_special_tokens=True)
        # At half of a character (U+FFFD), wait for the rest, like vLLM.
        found = [not end.endswith("\ufffd") and any(text in end for text in self._texts) for end in ends]
        return torch.tensor(found, device=input_ids.device)


class OutputPenalties:
    """A logits processor of transformers: `presence_penalty` and `frequency_penalty` as in vLLM. Only the tokens of the
    answer count."""

    def __init__(self, sampling: Sampling, prompt_length: int) -> None:
        self._presence, self._frequency = sampling.presence_penalty, sampling.frequency_penalty
        self._prompt_length = prompt_length

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        import torch

        answer = input_ids[:, self._prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, answer, torch.ones_like(answer, dtype=scores.dtype))
        return scores - self._frequency * counts - self._presence * (counts > 0)


class LogprobRecorder:
    """A logits processor of transformers, which changes nothing. It must be the first one, so that it sees the logits
    before temperature and penalties, as vLLM's `raw_logprobs`.

    It keeps the log-probabilities of one step, until it sees in the next step which token was chosen. All logits of a
    long answer (4,096 tokens of a vocabulary of 151,000) would need 2.5 GB for each row.
    """

    def __init__(self) -> None:
        self._chosen: list[Any] = []
        """For each step but the last one, the log-probability of the token of each row."""
        self._last: Any = None
        """Log-probabilities of the last step: (rows, vocabulary)."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if self._last is not None:
            self._chosen.append(self._of_last(input_ids[:, -1:]))
        self._last = scores.float().log_softmax(-1)
        return scores

    def rows(self, output: Any) -> list[list[float]]:
        """Return the log-probability of each token of each row. `output`: all generated tokens, (rows, tokens). On a
        GPU, transformers may have computed more steps than it returns."""
        import torch

        steps = output.shape[1]
        chosen = self._chosen if len(self._chosen) >= steps else [*self._chosen, self._of_last(output[:, -1:])]
        found: list[list[float]] = torch.cat(chosen[:steps], dim=1).tolist()
        return found

    def _of_last(self, tokens: Any) -> Any:
        return self._last.gather(1, tokens.to(self._last.device))


def penalties(sampling: Sampling, prompt_length: int) -> list[Any]:
    """Return the logits processors that the sampling needs. transformers would put its own repetition penalty before
    all other processors."""
    from transformers import RepetitionPenaltyLogitsProcessor

    found: list[Any] = []
    if sampling.repetition_penalty != 1.0:
        found.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.presence_penalty or sampling.frequency_penalty:
        found.append(OutputPenalties(sampling, prompt_length))
    return found


def reset_generation_config(model: Any) -> set[int]:
    """Clear the checkpoint's generation defaults and return its end-of-sequence token ids.

    Otherwise `generate` would use the checkpoint's value, for example its repetition penalty, for every argument that
    is not set later.
    """
    from transformers import GenerationConfig

    own = model.generation_config
    eos_token_ids = own.eos_token_id
    model.generation_config = GenerationConfig(bos_token_id=own.bos_token_id, pad_token_id=own.pad_token_id)
    if eos_token_ids is None:
        return set()
    return set(eos_token_ids if isinstance(eos_token_ids, list) else [eos_token_ids])


def generation_config(sampling: Sampling, max_new_tokens: int, pad_token_id: int, eos_token_ids: set[int]) -> Any:
    """Return a `GenerationConfig` with the sampling arguments, the token limit and the end-of-sequence tokens. Without
    penalties, which are logits processors here."""
    from transformers import GenerationConfig

    decoding: dict[str, Any] = {"do_sample": False}
    if sampling.temperature > 0:
        decoding = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p}
        decoding |= {"top_k": sampling.top_k, "min_p": sampling.min_p or None}  # top_k=0: all tokens
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(eos_token_ids) or None,
        pad_token_id=pad_token_id,
        **decoding,
    )


def hide_assisted_decoding_warnings() -> None:
    """Hide the warnings that transformers' assisted decoding causes itself, unless the user asked for debug output."""
    if not is_debug():
        logging.getLogger("transformers.generation.utils").addFilter(
            lambda record: not record.getMessage().startswith(ASSISTED_DECODING_WARNINGS)
        )


@contextlib.contextmanager
def assisted_call(target: Any, assistant: Any, images: Mapping[str, Any]) -> Iterator[list[int]]:
    """Let the assistant see the images during the block, which makes one call. Give the block a list, to which each
    forward pass of the target adds the number of tokens that it reads. transformers does the decoding.

    `images`: the inputs of the assistant's vision tower, by name.
    """
    passes: list[int] = []

    def count(module: Any, arguments: Any, named: dict[str, Any]) -> None:
        passes.append(int(named["input_ids"].shape[1]))

    def add_images(module: Any, arguments: Any, named: dict[str, Any]) -> Any:
        # transformers 5.19 runs the target's vision tower before the first draft, passes its features on instead of the
        # images, and drops them for an assistant (generation/utils.py, `is_first_iteration=not is_assistant`). They
        # would not fit another model. The cache is empty in the first pass of a call.
        if named["past_key_values"].get_seq_length() > 0:
            return None
        return arguments, {**named, **on_device(images, assistant)}

    hooks = (
        target.register_forward_pre_hook(count, with_kwargs=True),
        assistant.register_forward_pre_hook(add_images, with_kwargs=True),
    )
    try:
        yield passes
    finally:
        for hook in hooks:
            hook.remove()


def with_draft_counts(call: Call, passes: Sequence[int], prompt_length: int, output_tokens: int) -> Call:
    """Return a call with the work of its drafts. `passes`: the tokens that each forward pass of the target read. The
    first pass reads the prompt and a draft, every later one the last accepted token and a draft.

    Each pass adds one token of the target's own to the accepted ones. If an end token was drafted, transformers counts
    it as the target's own.
    """
    return replace(
        call,
        proposed_tokens=sum(passes) - prompt_length - (len(passes) - 1),
        accepted_tokens=max(0, output_tokens - len(passes)),
        target_calls=len(passes),
    )
