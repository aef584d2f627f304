"""The arguments of Hugging Face's `generate`, an observer of its steps, and the texts of its output."""

import bisect
import functools
import time
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers.decoders import DecodeStream
from transformers import GenerationConfig, RepetitionPenaltyLogitsProcessor

from lmms_eval_mai.contract import Repetition, Sampling


class Steps:
    """Watches a call token by token: records its times, on the clock of `time.perf_counter`, and its log-probabilities,
    and ends it if nobody waits for it or if it repeats itself."""

    def __init__(self, repetition: Repetition | None = None) -> None:
        """`repetition`: when the output ends because it repeats itself."""
        self.submitted_at = self.began_at = time.perf_counter()
        self.first_token_at: float | None = None
        self.must_end = False
        self.logprobs: list[float] = []
        """The log-probability of each token. Empty without `see_logits`."""
        self.repeats = False
        """Whether the output ended because it repeated itself."""
        self._repetition, self._tokens = repetition, list[int]()
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
        if self._repetition is not None:
            self._tokens.append(int(input_ids[0, -1]))
            self.repeats = self._repetition.ends(self._tokens)
        return torch.tensor([self.must_end or self.repeats], device=input_ids.device)


def reset_generation_config(model: Any) -> list[int]:
    """Clear the checkpoint's generation defaults and return its end-of-sequence token ids. Otherwise `generate` would
    use the checkpoint's value, for example its repetition penalty, for every argument that is not set later."""
    given = model.generation_config
    model.generation_config = GenerationConfig(bos_token_id=given.bos_token_id, pad_token_id=given.pad_token_id)
    ids = given.eos_token_id
    return ids if isinstance(ids, list) else [ids] if ids is not None else []


def decoding(sampling: Sampling, max_new_tokens: int, end_tokens: list[int]) -> GenerationConfig:
    """Return the configuration of `generate`, without the penalties, which must come after `Steps.see_logits`."""
    is_sampled = sampling.temperature > 0
    config = GenerationConfig(max_new_tokens=max_new_tokens, eos_token_id=end_tokens or None, do_sample=is_sampled)
    if is_sampled:
        config.update(temperature=sampling.temperature, top_p=sampling.top_p, min_p=sampling.min_p or None)
        config.update(top_k=sampling.top_k)  # 0: all tokens
    return config


def penalties(sampling: Sampling, prompt_tokens: int) -> list[Any]:
    """Return the logits processors of transformers that penalise tokens. `prompt_tokens`: the length of the prompt."""
    processors: list[Any] = []
    if sampling.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.presence_penalty or sampling.frequency_penalty:
        processors.append(functools.partial(_penalise, sampling, prompt_tokens))
    return processors


def _penalise(sampling: Sampling, prompt_tokens: int, input_ids: Any, scores: Any) -> Any:
    """Return the logits without the presence and the frequency penalty of each token that the answer has, as in
    vLLM."""
    counts = torch.bincount(input_ids[0, prompt_tokens:], minlength=scores.shape[-1])
    return scores - sampling.presence_penalty * (counts > 0) - sampling.frequency_penalty * counts


def texts_of_output(ids: Sequence[int], tokenizer: Any) -> tuple[str, ...]:
    """Return the text that each generated token adds. Special tokens add none. A character that is spread over several
    tokens belongs to the last of them, and one that the end cuts in two is left out. The tokenizer must be a fast one
    of Hugging Face."""
    stream = DecodeStream(skip_special_tokens=True)
    texts = []
    for token in ids:
        try:
            texts.append(stream.step(tokenizer.backend_tokenizer, token) or "")
        except Exception:  # bytes that are not UTF-8 may change the text before them ("Invalid prefix encountered")
            stream = DecodeStream(skip_special_tokens=True)
            texts.append("")
    return tuple(texts)


def cut_at_stop(ids: list[int], tokenizer: Any, stops: Sequence[str]) -> tuple[list[int], str, bool]:
    """Return the tokens up to the one that completes a stop text, the text before the stop text, and whether there is
    one. If there are several, the one that ends first counts, as in vLLM."""

    def text_of(count: int) -> str:
        return str(tokenizer.decode(ids[:count], skip_special_tokens=True))

    def has_stop(count: int) -> bool:
        return any(stop in text_of(count) for stop in stops)

    if not has_stop(len(ids)):
        return ids, text_of(len(ids)), False
    count = bisect.bisect_left(range(len(ids)), True, key=has_stop)
    text = text_of(count)
    first = min((stop for stop in stops if stop in text), key=lambda stop: text.index(stop) + len(stop))
    return ids[:count], text[: text.index(first)], True
