"""The arguments of Hugging Face's `generate`, an observer of its steps, and speculative decoding.

In speculative decoding a smaller model, the assistant, drafts tokens, and the model itself, the target, checks them
(Table 12 and Appendix B.4 of the paper).
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from transformers import GenerationConfig

from lmms_eval_mai.contract import Sampling
from lmms_eval_mai.engines.transformers.inputs import on_device


class Steps:
    """Watches a batch token by token: ends rows, and records the time of the first token and the log-probabilities."""

    def __init__(self, are_done: Callable[[], list[bool]]) -> None:
        """`are_done`: returns for each row whether its call was cancelled or the engine was closed."""
        self._are_done = are_done
        self.began_at = time.perf_counter()
        self.first_token_at: float | None = None
        self.logprobs: list[torch.Tensor] = []
        """For each step, the log-probability of the token of each row: (rows, 1). Empty without `see_logits`."""
        self._last: torch.Tensor | None = None
        """Log-probabilities of the last step: (rows, vocabulary). Those of a long answer (4,096 tokens of a vocabulary
        of 151,000) would need 2.5 GB for each row."""

    def see_logits(self, input_ids: Any, scores: Any) -> Any:
        """Record the logits, and change nothing. The first logits processor of transformers, so that it sees the logits
        before temperature and penalties, as vLLM's `raw_logprobs`."""
        self._last = scores.float().log_softmax(-1)
        return scores

    def see_token(self, input_ids: Any, scores: Any, **more: Any) -> Any:
        """Return for each row whether it ends. A stopping criterion of transformers."""
        self.first_token_at = self.first_token_at or time.perf_counter()
        if self._last is not None:
            self.logprobs.append(self._last.gather(1, input_ids[:, -1:]))
        return torch.tensor(self._are_done(), device=input_ids.device)


def reset_generation_config(model: Any) -> list[int]:
    """Clear the checkpoint's generation defaults and return its end-of-sequence token ids. Otherwise `generate` would
    use the checkpoint's value, for example its repetition penalty, for every argument that is not set later."""
    own = model.generation_config
    model.generation_config = GenerationConfig(bos_token_id=own.bos_token_id, pad_token_id=own.pad_token_id)
    ids = own.eos_token_id
    return ids if isinstance(ids, list) else [ids] if ids is not None else []


def decoding(sampling: Sampling, max_new_tokens: int, end_tokens: list[int], tokenizer: Any) -> dict[str, Any]:
    """Return arguments of `generate`. The repetition penalty is not among them, because it must come after
    `Steps.see_logits`."""
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=end_tokens or None,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=sampling.temperature > 0,
    )
    if sampling.temperature > 0:
        config.update(temperature=sampling.temperature, top_p=sampling.top_p, min_p=sampling.min_p or None)
        config.update(top_k=sampling.top_k)  # 0: all tokens
    return {"generation_config": config}


@contextlib.contextmanager
def assisted_call(target: Any, assistant: Any, images: Mapping[str, Any]) -> Iterator[list[int]]:
    """Show the images to the assistant during the block, which makes one call. Give the block a list, to which each
    forward pass of the target adds the number of tokens that it reads. transformers does the decoding.

    `images`: the inputs of the assistant's vision tower, by name. Empty: the assistant drafts from the text alone.
    """
    passes: list[int] = []

    def count(module: Any, arguments: Any, named: dict[str, Any]) -> None:
        passes.append(int(named["input_ids"].shape[1]))

    def add_images(module: Any, arguments: Any, named: dict[str, Any]) -> Any:
        # transformers 5.19 runs the target's vision tower before the first draft, passes its features on instead of the
        # images, and drops them for an assistant (generation/utils.py, `is_first_iteration=not is_assistant`). They
        # would not fit another model. The cache is empty in the first pass of a call.
        is_first = named["past_key_values"].get_seq_length() == 0
        return (arguments, {**named, **on_device(images, assistant)}) if is_first else None

    with contextlib.ExitStack() as hooks:
        hooks.callback(target.register_forward_pre_hook(count, with_kwargs=True).remove)
        hooks.callback(assistant.register_forward_pre_hook(add_images, with_kwargs=True).remove)
        yield passes
