"""How Hugging Face's `generate` is told to decode, and watched while it does."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from lmms_eval_mai.engines.base import Sampling


class StopWhenCancelled:
    """A stopping criterion of transformers: rows whose call was cancelled are done; notes when the first token came."""

    def __init__(self, answers: Sequence[Any], stopped: Callable[[], bool]) -> None:
        self._answers = answers
        self._stopped = stopped
        self.first: float | None = None

    def __call__(self, input_ids: Any, scores: Any, **more: Any) -> Any:
        import torch

        self.first = self.first or time.perf_counter()
        stopped = self._stopped()
        return torch.tensor([stopped or one.done() for one in self._answers], device=input_ids.device)


def reset_generation_config(model: Any) -> set[int]:
    """From here on nothing of the checkpoint's own decides a token: `generate` fills what a configuration leaves open
    from the model's. -> the tokens that end an answer."""
    from transformers import GenerationConfig

    own = model.generation_config
    ends = own.eos_token_id
    model.generation_config = GenerationConfig(bos_token_id=own.bos_token_id, pad_token_id=own.pad_token_id)
    return set() if ends is None else set(ends if isinstance(ends, list) else [ends])


def generation_config(sampling: Sampling, max_new_tokens: int, pad: int, ends: set[int]) -> Any:
    """All that decides a token."""
    from transformers import GenerationConfig

    choices: dict[str, Any] = {"do_sample": False}
    if sampling.temperature > 0:
        choices = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p}
        choices["top_k"] = sampling.top_k  # 0: all
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        repetition_penalty=sampling.repetition_penalty,
        eos_token_id=sorted(ends) or None,
        pad_token_id=pad,
        **choices,
    )
