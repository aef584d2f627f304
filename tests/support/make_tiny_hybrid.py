"""Two tiny random checkpoints of Qwen3.5's architecture, whose chat template switches the model's own thinking.

vLLM on a CPU runs this architecture in bfloat16 only, and with linear heads of 128 only.
"""

from pathlib import Path

import torch
from support.make_tiny_pair import CORPUS, VISION, made_once, text_sizes
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

from experiments.demo_pair import qwen3vl

START, END = "<think>", "</think>"
# The end of Qwen3.5's own template: thinking is on unless the switch is false.
SWITCHED = (
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}{{ '<think>\\n\\n</think>\\n\\n' }}"
    "{%- else -%}{{ '<think>\\n' }}{%- endif -%}{%- endif -%}"
)
CHAT_TEMPLATE = qwen3vl.CHAT_TEMPLATE.rpartition("{%- if add_generation_prompt -%}")[0] + SWITCHED


def make_checkpoint(folder: Path, hidden: int, layers: int, seed: int) -> None:
    """Write one checkpoint into `folder`."""
    tokenizer = qwen3vl.make_tokenizer(folder, CORPUS, 512, 4096)
    tokenizer.add_tokens([START, END])  # not special: an output shows them
    tokenizer.chat_template = CHAT_TEMPLATE
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in (*qwen3vl.SPECIAL, END)}
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    config = Qwen3_5Config(
        text_config={
            **text_sizes(hidden, layers),
            "vocab_size": len(tokenizer),
            "head_dim": 32,
            "max_position_embeddings": tokenizer.model_max_length,
            "rope_parameters": {**rope, "partial_rotary_factor": 0.25},
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 2,
            "eos_token_id": ids["<|im_end|>"],
        },
        vision_config={
            **{name: size for name, size in VISION.items() if name != "deepstack_visual_indexes"},
            "out_hidden_size": hidden,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    torch.manual_seed(seed)
    model = Qwen3_5ForConditionalGeneration(config).eval()
    qwen3vl.end_on(model, ids["<|im_end|>"], ids["<|endoftext|>"])
    qwen3vl.draw_larger_weights(model)
    processor = qwen3vl.make_processor(tokenizer, 192 * 192, 256 * 256)
    processor.chat_template = CHAT_TEMPLATE
    qwen3vl.save(folder, model, processor)


def make_pair(folder: Path) -> tuple[Path, Path]:
    """Write `folder`/small and `folder`/large, unless this version of the code wrote them. Returns both paths."""
    small, large = folder / "small", folder / "large"
    for _ in made_once(folder, __file__):
        make_checkpoint(small, hidden=64, layers=4, seed=2)
        make_checkpoint(large, hidden=96, layers=4, seed=8)
    return small, large
