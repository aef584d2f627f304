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
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb, apply_rotary_pos_emb_vision

from .shapes import SIDE

PATCH, MERGE = 16, 2
GRID = SIDE * MERGE
IMAGE_START = 4
"""Tokens before the first image token: <|im_start|>, user, line break, <|vision_start|>."""
IMAGE_TOKENS = SIDE * SIDE


def patches_of(images: list[Image.Image]) -> Tensor:
    """Turn images of 96 x 96 px into patches [images, 36, 3 * 2 * 16 * 16], as the image processor orders and scales
    them."""
    pixels = torch.from_numpy(np.stack([np.asarray(image) for image in images])).float()
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073])
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711])
    pixels = (pixels / 255 - mean) / std
    blocks = pixels.view(len(images), SIDE, MERGE, PATCH, SIDE, MERGE, PATCH, 3)
    blocks = blocks.permute(0, 1, 4, 2, 5, 7, 3, 6)  # blocks to merge first, channels before pixels
    blocks = blocks.reshape(len(images), GRID * GRID, 3, 1, PATCH, PATCH).expand(-1, -1, -1, 2, -1, -1)
    return blocks.reshape(len(images), GRID * GRID, -1)


class Network(nn.Module):
    """Batched forward over the modules of `model`."""

    def __init__(self, model: Qwen3VLForConditionalGeneration, image_positions: Tensor, kept: tuple[int, ...]) -> None:
        """`image_positions`: [3, 1, tokens], the result of `get_rope_index` for a long prompt with an image. `kept`:
        `forward` also returns the states after these numbers of layers."""
        super().__init__()
        self.model = model
        self.kept = kept
        visual = model.model.visual
        rows = torch.arange(GRID).view(SIDE, 1, MERGE, 1).expand(SIDE, SIDE, MERGE, MERGE).reshape(-1)
        columns = torch.arange(GRID).view(1, SIDE, 1, MERGE).expand(SIDE, SIDE, MERGE, MERGE).reshape(-1)
        self.register_buffer("patch_index", rows * GRID + columns, persistent=False)
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
            shape = (number, GRID * GRID, 3, attention.num_heads, attention.head_dim)
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
        self, tokens: Tensor, vision_tokens: Tensor, deepstack_tokens: list[Tensor], query_positions: Tensor
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """Run the text model.

        `tokens`: [samples, length], padded on the right. `vision_tokens`, `deepstack_tokens`: the results of `encode`
        for each sample's image. `query_positions`: [samples], the positions whose attention logits are returned.

        Returns the last hidden states, the states after the kept layers (before the final norm), and the attention
        logits [samples, length] of the first head of the last layer at `query_positions`.
        """
        text = self.model.model.language_model
        end = IMAGE_START + IMAGE_TOKENS
        states = text.embed_tokens(tokens)
        states = torch.cat([states[:, :IMAGE_START], vision_tokens.to(states.dtype), states[:, end:]], 1)
        positions = self.cos[:, : tokens.shape[1]], self.sin[:, : tokens.shape[1]]
        length = tokens.shape[1]
        kept = []
        mask = torch.full((length, length), torch.finfo(torch.float32).min, device=tokens.device).triu(1)
        attention_logits = states.new_zeros(())
        for level, layer in enumerate(text.layers):
            if level + 1 == len(text.layers):
                attention_logits = _attention_logits(layer, states, positions, query_positions)
            states = layer(states, position_embeddings=positions, attention_mask=mask)
            if level < len(deepstack_tokens):
                extra = nn.functional.pad(deepstack_tokens[level], (0, 0, IMAGE_START, tokens.shape[1] - end))
                states = states + extra
            if level + 1 in self.kept:
                kept.append(states)
        return text.norm(states), kept, attention_logits


def _attention_logits(
    layer: nn.Module, states: Tensor, positions: tuple[Tensor, Tensor], query_positions: Tensor
) -> Tensor:
    """Return the attention logits [samples, length] of the layer's first head for one token of each sample. Later
    tokens are masked."""
    attention, normed = layer.self_attn, layer.input_layernorm(states)
    shape = (*normed.shape[:2], -1, attention.head_dim)
    query = attention.q_norm(attention.q_proj(normed).view(shape))[:, None, :, 0]
    key = attention.k_norm(attention.k_proj(normed).view(shape))[:, None, :, 0]
    query, key = apply_rotary_pos_emb(query, key, *positions)
    chosen = query[torch.arange(len(query), device=query.device), 0, query_positions]
    logits = torch.einsum("sd,sld->sl", chosen, key[:, 0]).float() * attention.scaling
    after = torch.arange(logits.shape[1], device=logits.device) > query_positions[:, None]
    return logits.masked_fill(after, float("-inf"))
