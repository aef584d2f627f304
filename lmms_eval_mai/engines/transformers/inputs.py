"""Converts chats into the inputs of a Hugging Face model, with the checkpoint's own processor."""

from collections.abc import Mapping
from typing import Any

import torch

from lmms_eval_mai.contract import Image, Prompt
from lmms_eval_mai.engines.messages import merge_adjacent_text
from lmms_eval_mai.engines.thinking import ThinkingSwitch

Inputs = dict[str, torch.Tensor]
"""Name -> tensor. `input_ids`, `attention_mask` and others have the shape (1, length). The first dimension of the rest
counts image patches or images."""


def build_inputs(processor: Any, prompt: Prompt, thinking: ThinkingSwitch, **more: Any) -> Inputs:
    """Return the model inputs of a prompt. `more`: further arguments of the processor. Raises the processor's errors,
    for example for an image that it cannot prepare."""
    images = [part.pixels for message in prompt.messages for part in message.content if isinstance(part, Image)]
    return dict(
        processor(
            text=[shown_text(processor, prompt, thinking)],
            images=[images] if images else None,
            return_tensors="pt",
            add_special_tokens=False,
            **more,
        )
    )


def shown_text(processor: Any, prompt: Prompt, thinking: ThinkingSwitch) -> str:
    """Return a prompt in the form of the model's chat template."""
    chat = [
        {
            "role": message.role,
            "content": [
                {"type": "image"} if isinstance(part, Image) else {"type": "text", "text": part}
                for part in merge_adjacent_text(message.content)
            ],
        }
        for message in prompt.messages
    ]
    given = thinking.arguments(prompt)
    return str(processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False, **given))


def on_device(inputs: Mapping[str, torch.Tensor], model: Any) -> Inputs:
    """Return tensors on a model's device. Those of floating-point numbers get the model's type."""
    types = {name: model.dtype if tensor.is_floating_point() else tensor.dtype for name, tensor in inputs.items()}
    return {name: tensor.to(model.device, types[name]) for name, tensor in inputs.items()}
