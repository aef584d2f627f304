"""A fast forward pass of Qwen3-VL, for a batch of images of equal size that all begin at the same token.

It uses the weights of transformers' model and gives the same result, which a test checks. transformers' own forward
pass encodes the images of a batch one by one.
"""

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen3VLForConditionalGeneration
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb_vision

from .shapes import CELL, SIDE

IMAGE_START = 4
"""Tokens before the first image token: <|im_start|>, user, line break, <|vision_start|>."""
IMAGE_TOKENS = SIDE * SIDE


def patches_of(images: list[Image.Image], patch: int) -> Tensor:
    """Turn images of 96 x 96 px into patches [images, patches, 3 * 2 * patch * patch], as the image processor orders
    and scales them. The patches of one cell follow each other."""
    pixels = torch.from_numpy(np.stack([np.asarray(image) for image in images])).float()
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073])
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711])
    pixels = (pixels / 255 - mean) / std
    merge = CELL // patch
    blocks = pixels.view(len(images), SIDE, merge, patch, SIDE, merge, patch, 3)
    blocks = blocks.permute(0, 1, 4, 2, 5, 7, 3, 6)  # blocks to merge first, channels before pixels
    blocks = blocks.reshape(len(images), -1, 3, 1, patch, patch).expand(-1, -1, -1, 2, -1, -1)
    return blocks.reshape(len(images), blocks.shape[1], -1)


class Network(nn.Module):
    """Batched forward over the modules of `model`."""

    def __init__(self, model: Qwen3VLForConditionalGeneration, image_positions: Tensor, kept: tuple[int, ...]) -> None:
        """`image_positions`: [3, 1, tokens], the result of `get_rope_index` for a long prompt with an image. `kept`:
        `forward` also returns the states after these numbers of layers."""
        super().__init__()
        self.model = model
        self.kept = kept
        visual = model.model.visual
        merge = visual.spatial_merge_size
        grid = SIDE * merge
        rows = torch.arange(grid).view(SIDE, 1, merge, 1).expand(SIDE, SIDE, merge, merge).reshape(-1)
        columns = torch.arange(grid).view(1, SIDE, 1, merge).expand(SIDE, SIDE, merge, merge).reshape(-1)
        self.register_buffer("patch_index", rows * grid + columns, persistent=False)
        cos, sin = visual.rotary_pos_emb(torch.zeros(1), torch.stack([rows, columns], 1))
        self.register_buffer("vision_cos", cos, persistent=False)
        self.register_buffer("vision_sin", sin, persistent=False)
        cos, sin = model.model.language_model.rotary_emb(torch.zeros(1), image_positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def encode(self, patches: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Turn patches into merged vision tokens [images, 9, hidden], and into the same for each deepstack level."""
        visual = self.model.model.visual
        number = patches.shape[0]
        projection = visual.patch_embed.proj
        states = nn.functional.linear(patches, projection.weight.flatten(1), projection.bias)
        states = states + visual.pos_embed(self.patch_index)
        deepstack_tokens = []
        for level, block in enumerate(visual.blocks):
            attention = block.attn
            shape = (number, patches.shape[1], 3, attention.num_heads, attention.head_dim)
            query, key, value = attention.qkv(block.norm1(states)).view(shape).unbind(2)
            query, key = apply_rotary_pos_emb_vision(query, key, self.vision_cos, self.vision_sin)
            mixed = scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
            states = states + attention.proj(mixed.transpose(1, 2).flatten(2))
            states = states + block.mlp(block.norm2(states))
            if level in visual.deepstack_visual_indexes:
                merger = visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(level)]
                deepstack_tokens.append(merger(states).view(number, IMAGE_TOKENS, -1))
        return visual.merger(states).view(number, IMAGE_TOKENS, -1), deepstack_tokens

    def forward(
        self,
        tokens: Tensor,
        vision_tokens: Tensor,
        deepstack_tokens: list[Tensor],
        query_positions: Tensor,
        wanted: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """Run the text model.

        `tokens`: [samples, length], padded on the right. `vision_tokens`, `deepstack_tokens`: the results of `encode`
        for each sample's image. `query_positions`: [samples], the positions whose attention logits are returned.
        `wanted`: [samples, length], the positions whose states after the last layer are needed. The states of the
        others are not complete, which saves time.

        Returns the last hidden states, the states after the kept layers (before the final norm), and the attention
        logits [samples, length] of the first head of the last layer at `query_positions`.
        """
        text = self.model.model.language_model
        states = text.embed_tokens(tokens)
        before, after = states[:, :IMAGE_START], states[:, IMAGE_START + IMAGE_TOKENS :]
        states = torch.cat([before, vision_tokens.to(states.dtype), after], 1)
        kept = []
        attention_logits = states.new_zeros(())
        for level, layer in enumerate(text.layers):
            last = level + 1 == len(text.layers)
            before = states
            states, key = self._layer(layer, states, wanted if last else None)
            if last:
                attention_logits = self._attention_logits(layer, before, key, query_positions)
            if level < len(deepstack_tokens):
                after_image = tokens.shape[1] - IMAGE_START - IMAGE_TOKENS
                states = states + nn.functional.pad(deepstack_tokens[level], (0, 0, IMAGE_START, after_image))
            if level + 1 in self.kept:
                kept.append(states)
        return _rms_norm(states, text.norm), kept, attention_logits

    def _layer(self, layer: nn.Module, states: Tensor, wanted: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run one layer of the text model. Returns the new states and the keys. `wanted`: [samples, length], the tokens
        for which the feed-forward network is computed. None: all."""
        query, key, value = self._heads(layer, states)
        states = states + layer.self_attn.o_proj(_attend(query, key, value, layer.self_attn.scaling))
        if wanted is None:
            return states + _feed_forward(layer, states), key
        chosen = states[wanted]
        return states.index_put((wanted,), chosen + _feed_forward(layer, chosen)), key

    def _heads(self, layer: nn.Module, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, [samples, heads, length, head size] each."""
        attention, normed = layer.self_attn, _rms_norm(states, layer.input_layernorm)
        shape = (*normed.shape[:2], -1, attention.head_dim)
        query = _rms_norm(attention.q_proj(normed).view(shape), attention.q_norm).transpose(1, 2)
        key = _rms_norm(attention.k_proj(normed).view(shape), attention.k_norm).transpose(1, 2)
        value = attention.v_proj(normed).view(shape).transpose(1, 2)
        length = states.shape[1]
        cos, sin = self.cos[:, None, :length].to(query.dtype), self.sin[:, None, :length].to(query.dtype)
        return _rotate(query, cos, sin), _rotate(key, cos, sin), value

    def _attention_logits(self, layer: nn.Module, states: Tensor, key: Tensor, query_positions: Tensor) -> Tensor:
        """Return the attention logits [samples, length] of the layer's first head for one token of each sample. Later
        tokens are masked. `states`: before the layer. `key`: the keys of all tokens."""
        attention = layer.self_attn
        chosen = states[torch.arange(len(states), device=states.device), query_positions]
        query = attention.q_proj(_rms_norm(chosen, layer.input_layernorm))[:, : attention.head_dim]
        query = _rms_norm(query, attention.q_norm)
        query = _rotate(
            query, self.cos[0, query_positions].to(query.dtype), self.sin[0, query_positions].to(query.dtype)
        )
        logits = torch.einsum("sd,sld->sl", query, key[:, 0]).float() * attention.scaling
        after = torch.arange(logits.shape[1], device=logits.device) > query_positions[:, None]
        return logits.masked_fill(after, float("-inf"))


def _rms_norm(states: Tensor, norm: nn.Module) -> Tensor:
    """Normalize as transformers does. The result has the type of autocast, so that it is converted only once."""
    device = states.device.type
    kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    return nn.functional.rms_norm(states.float(), norm.weight.shape, norm.weight, norm.variance_epsilon).to(kind)


def _feed_forward(layer: nn.Module, states: Tensor) -> Tensor:
    mlp, normed = layer.mlp, _rms_norm(states, layer.post_attention_layernorm)
    return mlp.down_proj(nn.functional.silu(mlp.gate_proj(normed)) * mlp.up_proj(normed))


def _attend(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Return causal attention, [samples, length, heads * head size].

    On a CPU, the backward pass of PyTorch's fused attention takes three times as long.
    """
    samples, heads, length, size = query.shape
    with torch.autocast(query.device.type, enabled=False):
        query, key, value = query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)
        mask = torch.full((length, length), float("-inf"), dtype=query.dtype, device=query.device).triu(1)
        logits = torch.baddbmm(mask, query, key.transpose(1, 2), alpha=scaling)
        mixed = torch.bmm(logits.softmax(-1), value)
    return mixed.view(samples, heads, length, size).transpose(1, 2).flatten(2)


def _rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = states.chunk(2, -1)
    return states * cos + torch.cat([-second, first], -1) * sin
