"""Greedy decoding of many prompts at once, with the weights of a model and the forward pass of `network`."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from .batches import Batches
from .network import Network, patches_of

AT_ONCE = 128
"""Prompts that are decoded together. They have the same number of tokens."""


@torch.no_grad()
def respond(
    network: Network, batches: Batches, images: Sequence[Image.Image], texts: Sequence[str], limit: int = 160
) -> list[str]:
    """Return the response to each text about its image. `limit`: the largest number of tokens of a response."""
    prompts = batches.tokenizer([batches.opening + text + batches.closing for text in texts]).input_ids
    end = batches.tokenizer.convert_tokens_to_ids("<|im_end|>")
    responses = [""] * len(prompts)
    for chosen in _equal_lengths(prompts):
        pixels = patches_of([images[i] for i in chosen], batches.patch).to(network.cos.device)
        tokens = torch.tensor([prompts[i] for i in chosen], device=pixels.device)
        for index, row in zip(chosen, _decode(network, pixels, tokens, end, limit).tolist(), strict=True):
            row = row[: row.index(end)] if end in row else row
            responses[index] = batches.tokenizer.decode(row)
    return responses


def _equal_lengths(prompts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield indices of up to `AT_ONCE` prompts of the same length."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for index, prompt in enumerate(prompts):
        by_length[len(prompt)].append(index)
    for indices in by_length.values():
        yield from (indices[i : i + AT_ONCE] for i in range(0, len(indices), AT_ONCE))


def _decode(network: Network, pixels: Tensor, tokens: Tensor, end: int, limit: int) -> Tensor:
    vision_tokens, deepstack_tokens = network.encode(pixels)
    text = network.model.model.language_model
    states = network.embed(tokens, vision_tokens)
    cache: list[tuple[Tensor, Tensor]] = []
    found: list[Tensor] = []
    done = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    begin = 0
    while len(found) < limit and not done.all():
        for level, layer in enumerate(text.layers):
            states, kept = network.layer(layer, states, begin, cache[level] if begin else None)
            cache[level : level + 1] = [kept]
            if not begin and level < len(deepstack_tokens):
                states = states + pad(deepstack_tokens[level], network.around_image(tokens.shape[1]))
        begin = cache[0][0].shape[2]
        token = network.model.lm_head(text.norm(states[:, -1])).argmax(-1)
        found.append(token)
        done |= token == end
        states = text.embed_tokens(token)[:, None]
    return torch.stack(found, 1)
