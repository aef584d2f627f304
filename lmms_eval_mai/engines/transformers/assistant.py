"""Speculative decoding: a smaller model, the assistant, drafts tokens, and the model itself, the target, checks them
(Table 12 and Appendix B.4 of the paper).

transformers does the decoding. Two things are added here: the assistant gets the images, and the work is counted.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lmms_eval_mai.contract import Call
from lmms_eval_mai.engines.transformers.inputs import on_device


@contextlib.contextmanager
def assisted_call(target: Any, assistant: Any, images: Mapping[str, Any]) -> Iterator[list[int]]:
    """Let the assistant see the images during the block, which makes one call. Give the block a list, to which each
    forward pass of the target adds the number of tokens that it reads.

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
