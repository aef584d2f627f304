"""The arguments of Hugging Face's `generate`, and an observer of its steps."""

import time
from typing import Any

import torch
from transformers import GenerationConfig

from lmms_eval_mai.contract import Sampling


class Steps:
    """Watches a call token by token: records its times, on the clock of `time.perf_counter`, and its log-probabilities,
    and ends it if nobody waits for it."""

    def __init__(self) -> None:
        self.submitted_at = self.began_at = time.perf_counter()
        self.first_token_at: float | None = None
        self.must_end = False
        """Whether the call ends at its next token."""
        self.logprobs: list[float] = []
        """The log-probability of each token. Empty without `see_logits`."""
        self._last: torch.Tensor | None = None
        """Log-probabilities of the last step: (vocabulary,). Those of a long answer (4,096 tokens of a vocabulary of
        151,000) would need 2.5 GB."""

    def see_logits(self, input_ids: Any, scores: Any) -> Any:
        """Record the logits, and change nothing. The first logits processor of transformers, so that it sees the logits
        before temperature and penalties, as vLLM's `raw_logprobs`."""
        self._last = scores[0].float().log_softmax(-1)
        return scores

    def see_token(self, input_ids: Any, scores: Any, **more: Any) -> Any:
        """Return whether the call ends. A stopping criterion of transformers."""
        self.first_token_at = self.first_token_at or time.perf_counter()
        if self._last is not None:
            self.logprobs.append(float(self._last[input_ids[0, -1]]))
        return torch.tensor([self.must_end], device=input_ids.device)


def reset_generation_config(model: Any) -> list[int]:
    """Clear the checkpoint's generation defaults and return its end-of-sequence token ids. Otherwise `generate` would
    use the checkpoint's value, for example its repetition penalty, for every argument that is not set later."""
    own = model.generation_config
    model.generation_config = GenerationConfig(bos_token_id=own.bos_token_id, pad_token_id=own.pad_token_id)
    ids = own.eos_token_id
    return ids if isinstance(ids, list) else [ids] if ids is not None else []


def decoding(sampling: Sampling, max_new_tokens: int, end_tokens: list[int]) -> GenerationConfig:
    """Return the configuration of `generate`. The repetition penalty is not in it, because it must come after
    `Steps.see_logits`."""
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=end_tokens or None,
        do_sample=sampling.temperature > 0,
    )
    if sampling.temperature > 0:
        config.update(temperature=sampling.temperature, top_p=sampling.top_p, min_p=sampling.min_p or None)
        config.update(top_k=sampling.top_k)  # 0: all tokens
    return config


def penalise(sampling: Sampling, prompt_tokens: int, input_ids: Any, scores: Any) -> Any:
    """Return the logits without the presence and the frequency penalty of each token that the answer has, as in vLLM.
    With its first two arguments, it is a logits processor of transformers."""
    counts = torch.bincount(input_ids[0, prompt_tokens:], minlength=scores.shape[-1])
    return scores - sampling.presence_penalty * (counts > 0) - sampling.frequency_penalty * counts
