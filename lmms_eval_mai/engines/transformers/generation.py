"""Arguments and stopping of Hugging Face's `generate`."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from lmms_eval_mai.engines.base import Sampling
from lmms_eval_mai.engines.logs import is_debug

ASSISTED_DECODING_WARNINGS = ("Passing `generation_config` together with", "A custom logits processor of type")
"""How two harmless warnings begin. transformers' assisted decoding causes them: it calls itself with such arguments."""


class StopWhenCancelled:
    """A stopping criterion of transformers. It ends the rows of cancelled calls, and records the time of the first
    token."""

    def __init__(self, answers: Sequence[Any], is_stopped: Callable[[], bool]) -> None:
        """`answers`: one future per row. `is_stopped`: whether the engine was closed."""
        self._answers = answers
        self._is_stopped = is_stopped
        self.first_token_at: float | None = None

    def __call__(self, input_ids: Any, scores: Any, **more: Any) -> Any:
        import torch

        self.first_token_at = self.first_token_at or time.perf_counter()
        stopped = self._is_stopped()
        return torch.tensor([stopped or answer.done() for answer in self._answers], device=input_ids.device)


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
    """Return a `GenerationConfig` with the sampling arguments, the token limit and the end-of-sequence tokens."""
    from transformers import GenerationConfig

    decoding: dict[str, Any] = {"do_sample": False}
    if sampling.temperature > 0:
        decoding = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p}
        decoding["top_k"] = sampling.top_k  # 0: all tokens
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        repetition_penalty=sampling.repetition_penalty,
        eos_token_id=sorted(eos_token_ids) or None,
        pad_token_id=pad_token_id,
        **decoding,
    )


def hide_assisted_decoding_warnings() -> None:
    """Hide the warnings that transformers' assisted decoding causes itself, unless the user asked for debug output."""
    if not is_debug():
        logging.getLogger("transformers.generation.utils").addFilter(_may_be_printed)


def _may_be_printed(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(ASSISTED_DECODING_WARNINGS)
