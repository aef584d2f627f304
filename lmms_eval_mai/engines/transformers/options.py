"""The arguments of the `transformers` engine, and the check before a model is loaded."""

import os
from collections.abc import Mapping
from typing import Annotated, Any

from lmms_eval_mai.engines.arguments import NO_EFFECT, Arguments, Count
from lmms_eval_mai.engines.checkpoints import check_checkpoint, text_only_error
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.redaction import error_text


class TransformersOptions(Arguments):
    """Arguments of the engine, `small_<name>` / `large_<name>` / `<name>` for both. lmms-eval has an argument with the
    name `device` and keeps it, so `device` needs the prefix."""

    device: Annotated[str | None, NO_EFFECT] = None
    """`cuda:1`, `cpu`, ...; `auto` spreads the model over all devices. Default: GPU number `LOCAL_RANK` (GPU 0 without
    a launcher), or the CPU if there is no GPU. Write `small_device` or `large_device`."""
    dtype: str = "auto"
    """`float32`, `bfloat16`, ...; `auto` is the type of the checkpoint's weights."""
    attn_implementation: str | None = None
    """`sdpa`, `eager`, `flash_attention_2`, ... Default: transformers chooses. Has no effect on a model that must give
    attention weights."""
    max_model_len: Count | None = None
    """Tokens of prompt and answer. Default: the limit in the checkpoint's configuration."""
    revision: str | None = None
    """Branch, tag or commit of the checkpoint on the Hugging Face Hub."""
    trust_remote_code: bool = False
    """Whether code that comes with the checkpoint may run."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    """Arguments of the model's chat template, such as {"reasoning_effort": "low"}."""

    def check(self, side: str, model: str) -> None:
        """Refuse a checkpoint that is missing or has no vision. Raises `ArgumentError`."""
        from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, AutoConfig

        check_checkpoint(side, model)
        source = {"revision": self.revision, "trust_remote_code": self.trust_remote_code}
        try:
            config = AutoConfig.from_pretrained(os.path.expanduser(model), **source)
        except Exception as error:
            raise ArgumentError(f"{side}={model}: its configuration cannot be read. {error_text(error)}") from error
        # transformers lists the models with vision, but not a checkpoint with its own code (`auto_map`), nor every
        # checkpoint with a vision configuration.
        is_listed = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        if not is_listed and not hasattr(config, "auto_map") and not hasattr(config, "vision_config"):
            raise text_only_error(side, model, config.architectures)


def device_of(options: TransformersOptions) -> str:
    """Return the device of the models: the user's, else a GPU if there is one."""
    import torch

    if options.device:
        return options.device
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
