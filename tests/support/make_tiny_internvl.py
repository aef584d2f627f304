"""Tiny random checkpoints of the InternVL3.5 family, for the tests of the code around the models.

`make_checkpoint` writes the form of the `-HF` checkpoints: `InternVLForConditionalGeneration` with a Qwen3 text model.
`make_original` writes the same weights in the form of the other checkpoints, `InternVLChatModel`, which only vLLM
supports. The weights are random, so the answers are deterministic nonsense.
"""

import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
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


# Hugging Face's names -> the original names, where they differ. The original has one matrix for q, k and v.
ORIGINAL_NAMES = {
    r"^vision_tower": "vision_model",
    r"^multi_modal_projector\.layer_norm": "mlp1.0",
    r"^multi_modal_projector\.linear_1": "mlp1.1",
    r"^multi_modal_projector\.linear_2": "mlp1.3",
    r"embeddings\.cls_token": "embeddings.class_embedding",
    r"embeddings\.position_embeddings": "embeddings.position_embedding",
    r"patch_embeddings\.projection": "patch_embedding",
    r"encoder\.layer\.": "encoder.layers.",
    r"attention\.projection_layer": "attn.proj",
    r"layernorm_before": "norm1",
    r"layernorm_after": "norm2",
    r"lambda_(\d)": r"ls\1",
}


def make_internvl_tokenizer(folder: Path) -> Qwen2Tokenizer:
    """Return Qwen's tokenizer with InternVL's tokens.

    It has one token for `>` and a line break, as Qwen has. So the end of `<image>` in the original template is not a
    separate token.
    """
    make_tokenizer(folder, CORPUS, 512, 4096)
    vocabulary = json.loads((folder / "vocab.json").read_text())
    vocabulary[">Ċ"] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    with (folder / "merges.txt").open("a") as merges:
        merges.write("\n> Ċ")
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


def make_original(folder: Path, source: Path) -> Path:
    """Write the checkpoint in `source` to `folder` as an `InternVLChatModel`. Returns `folder`.

    Real checkpoints contain the code of their configuration class (`model_type` is `internvl_chat`), for which vLLM
    requires `trust_remote_code`. vLLM has a configuration class with the same fields, but registered for another model
    (`qianfan_ocr`). With that `model_type`, this checkpoint needs no code of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    given = json.loads((source / "config.json").read_text())
    text, vision = given["text_config"], given["vision_config"]
    config = {
        "architectures": ["InternVLChatModel"],
        "model_type": "qianfan_ocr",
        "text_config": {**text, "architectures": ["Qwen3ForCausalLM"]},
        "vision_config": {
            **{name: vision[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")},
            **{"num_attention_heads": vision["num_attention_heads"], "image_size": TILE, "patch_size": 14},
            **{"qkv_bias": True, "qk_normalization": False, "norm_type": "layer_norm", "layer_norm_eps": 1e-6},
        },
        **{"force_image_size": TILE, "downsample_ratio": 0.5, "ps_version": "v2", "select_layer": -1},
        **{"dynamic_image_size": True, "use_thumbnail": True, "min_dynamic_patch": 1, "max_dynamic_patch": 12},
        **{"dtype": "bfloat16", "tie_word_embeddings": False, "image_token_id": given["image_token_id"]},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "generation_config.json").write_text((source / "generation_config.json").read_text())
    save_file(
        _original_weights(load_file(source / "model.safetensors")), folder / "model.safetensors", {"format": "pt"}
    )
    tokenizer = Qwen2Tokenizer.from_pretrained(source)
    tokenizer.chat_template = CHAT_TEMPLATE.replace(NAMED["context_image_token"], "<image>")
    tokenizer.save_pretrained(folder)
    return folder


def _original_weights(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        if ".attention.k_proj" in name or ".attention.v_proj" in name:
            continue
        if ".attention.q_proj" in name:
            parts = [weights[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            name, weight = name.replace("attention.q_proj", "attn.qkv"), torch.cat(parts)
        for theirs, original in ORIGINAL_NAMES.items():
            name = re.sub(theirs, original, name)
        found[name] = weight.contiguous()
    return found
