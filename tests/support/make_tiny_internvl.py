"""A tiny random checkpoint of the InternVL3.5 family, for the tests of the code around the models.

It has the form of the `-HF` checkpoints: `InternVLForConditionalGeneration` with a Qwen3 text model. The weights are
random, so the answers are deterministic nonsense.
"""

from pathlib import Path

import torch
from support.make_tiny_pair import CORPUS, text_sizes
from transformers import (
    GotOcr2ImageProcessor,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    InternVLVideoProcessor,
    Qwen2Tokenizer,
)

from experiments.demo_pair.qwen3vl import (
    SPECIAL,
    draw_larger_weights,
    end_on,
    load_tokenizer,
    make_tokenizer,
    save,
)

NAMED = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
"""Tokens that the processor reads from its tokenizer by name."""

TILE = 112
"""Side of a tile in pixels. A patch has 14 px and a token has 2 x 2 patches, so a tile has 16 tokens."""

# The layout of InternVL's own template: a line break after each image, and no default system message.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string -%}{{ message.content }}"
    "{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}{{ '<IMG_CONTEXT>\\n' }}"
    "{%- elif part.type == 'video' -%}{{ '<video>\\n' }}"
    "{%- elif part.type == 'text' -%}{{ part.text }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}{{ '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


def make_internvl_tokenizer(folder: Path) -> Qwen2Tokenizer:
    """Return Qwen's tokenizer with InternVL's tokens."""
    make_tokenizer(folder, CORPUS, 512, 4096)
    load_tokenizer(folder, [*SPECIAL, *NAMED.values()], CHAT_TEMPLATE, 4096).save_pretrained(folder)
    return Qwen2Tokenizer.from_pretrained(folder, model_specific_special_tokens=NAMED)


def make_processor(tokenizer: Qwen2Tokenizer) -> InternVLProcessor:
    """Return a processor that cuts images into up to 12 tiles and a thumbnail, unless they are square and small.

    As in the real checkpoints, the file of the image processor does not request tiles. The processor requests them in
    each call.
    """
    pixels = {
        "size": {"height": TILE, "width": TILE},
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    }
    return InternVLProcessor(
        image_processor=GotOcr2ImageProcessor(**pixels),
        tokenizer=tokenizer,
        video_processor=InternVLVideoProcessor(**pixels),
        image_seq_length=(TILE // 28) ** 2,
        chat_template=CHAT_TEMPLATE,
    )


def make_checkpoint(folder: Path) -> Path:
    """Write one checkpoint of less than a million parameters into `folder`. Returns `folder`."""
    tokenizer = make_internvl_tokenizer(folder)
    end, pad = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>"))
    config = InternVLConfig(
        text_config={
            "model_type": "qwen3",
            "vocab_size": len(tokenizer),
            **text_sizes(hidden=96, layers=3),
            "head_dim": 32,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "tie_word_embeddings": False,
            "eos_token_id": end,
            "pad_token_id": pad,
            "bos_token_id": None,
        },
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "attention_bias": True,
            "image_size": [TILE, TILE],
            "patch_size": [14, 14],
        },
        image_token_id=tokenizer.context_image_token_id,
        image_seq_length=(TILE // 28) ** 2,
        tie_word_embeddings=False,
    )
    torch.manual_seed(2)
    model = InternVLForConditionalGeneration(config).eval()
    draw_larger_weights(model)
    end_on(model, end, pad)
    save(folder, model, make_processor(tokenizer))
    return folder
