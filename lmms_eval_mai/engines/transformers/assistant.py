"""Speculative decoding: a smaller model, the assistant, drafts tokens, and the model itself, the target, checks them
(Table 12 and Appendix B.4 of the paper).

transformers does the decoding. Two things are added here: the assistant gets the images, and the work is counted.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lmms_eval_mai.contract import Call, Message
from lmms_eval_mai.engines.transformers.generation import reset_generation_config
from lmms_eval_mai.engines.transformers.inputs import InputBuilder, ModelInput


def set_draft_length(assistant: Any, num_assistant_tokens: int | None) -> None:
    """Set the speculation length. None: transformers' own.

    The checkpoint's generation defaults are cleared. Its end token would end the drafts of a call with `ignore_eos`.
    """
    reset_generation_config(assistant)
    assistant.generation_config.num_assistant_tokens = num_assistant_tokens


class AssistantImages:
    """Prepares the images of a prompt for an assistant."""

    def __init__(self, assistant: str, model: InputBuilder) -> None:
        """`model`: what prepares the prompts of the model itself. Its images are used if both checkpoints prepare
        images in the same way, as those of one family mostly do. Raises transformers' errors."""
        from transformers import AutoProcessor

        own = AutoProcessor.from_pretrained(os.path.expanduser(assistant))
        same = own.image_processor.to_dict() == model.image_settings()
        self._own = None if same else InputBuilder(own)

    def of(self, chat: tuple[Message, ...], prompt: ModelInput) -> Mapping[str, Any]:
        """Return the inputs of the assistant's vision tower, by name. `prompt`: the same chat for the model itself.
        Raises `ValueError` if the assistant has another number of image tokens."""
        if self._own is None or not prompt.others:
            return prompt.others
        found = self._own.build(chat)
        if found.image_tokens != prompt.image_tokens:
            raise ValueError(
                f"the images are {prompt.image_tokens} tokens for the model and {found.image_tokens} for its assistant"
            )
        return found.others


@dataclass
class DraftCounts:
    """The work of speculative decoding in one call."""

    proposed_tokens: int = 0
    target_calls: int = 0

    def added_to(self, call: Call, output_tokens: int) -> Call:
        """Return the call with these counts. Each target call adds one token of its own to the accepted ones. If an end
        token was drafted, transformers counts it as the target's own."""
        return replace(
            call,
            proposed_tokens=self.proposed_tokens,
            accepted_tokens=max(0, output_tokens - self.target_calls),
            target_calls=self.target_calls,
        )


@contextlib.contextmanager
def assisted_call(target: Any, assistant: Any, prompt_tokens: int, images: Mapping[str, Any]) -> Iterator[DraftCounts]:
    """Let the assistant see the images, and count the drafts, during the block, which makes one call.

    `images`: the inputs of the vision tower, by name.
    """
    counts = DraftCounts()

    def count(module: Any, arguments: Any, named: dict[str, Any]) -> None:
        # The first forward pass gets the prompt and a draft, every later one the last accepted token and a draft.
        checked = int(named["input_ids"].shape[1])
        counts.proposed_tokens += checked - (1 if counts.target_calls else prompt_tokens)
        counts.target_calls += 1

    def add_images(module: Any, arguments: Any, named: dict[str, Any]) -> Any:
        # transformers 5.19 runs the target's vision tower before the first draft, passes its features on instead of the
        # images, and drops them for an assistant (generation/utils.py, `is_first_iteration=not is_assistant`). They
        # would not fit another model. The cache is empty in the first pass of a call.
        if named["past_key_values"].get_seq_length() > 0:
            return None
        own = {
            name: tensor.to(assistant.device, assistant.dtype if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in images.items()
        }
        return arguments, {**named, **own}

    hooks = (
        target.register_forward_pre_hook(count, with_kwargs=True),
        assistant.register_forward_pre_hook(add_images, with_kwargs=True),
    )
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()
