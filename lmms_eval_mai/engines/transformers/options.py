"""The arguments of the `transformers` engine."""

import dataclasses
import os
from typing import Any

from lmms_eval_mai.engines.arguments import positive_int
from lmms_eval_mai.engines.checkpoints import check_checkpoint, text_only_error
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.redaction import error_text

PERFORMANCE_ARGUMENTS = {"batch_size", "device"}
"""Arguments that cannot change an answer: a resumed run may have other values."""


def supports_attention(model_class: Any) -> bool:
    """Return whether a model, or its class, uses transformers' attention interface and can use `sdpa`."""
    return getattr(model_class, "_supports_attention_backend", False) and getattr(model_class, "_supports_sdpa", False)


@dataclasses.dataclass(frozen=True)
class TransformersOptions:
    """Arguments of the engine, `small_<name>` / `large_<name>` / `<name>` for both.

    `device` and `batch_size` need the prefix, because lmms-eval has arguments of these names and keeps them.
    """

    device: str | None = None
    """`cuda:1`, `cpu`, ...; `auto` spreads the model over all devices. Default: GPU number `LOCAL_RANK` (GPU 0 without
    a launcher), or the CPU if there is no GPU. Write `small_device` or `large_device`, because `device` is an argument
    of lmms-eval."""
    dtype: str = "auto"
    """`float32`, `bfloat16`, ...; `auto` is the type of the checkpoint's weights."""
    attn_implementation: str | None = None
    """`sdpa`, `eager`, `flash_attention_2`, ... Default: transformers chooses. A model that must give attention weights
    has `sdpa`, and other values are refused."""
    batch_size: int = 8
    """Largest number of calls in one batch. The Hugging Face rows of Table 12 have 1. Write `small_batch_size` or
    `large_batch_size`, because `batch_size` is an argument of lmms-eval."""
    max_model_len: int | None = None
    """Tokens of prompt and answer. Default: the limit in the checkpoint's configuration."""
    assistant_model: str | None = None
    """A checkpoint that drafts tokens for this model (speculative decoding, Table 12). It must have this model's
    tokenizer. Calls then run one by one. Refused for a model that must give attention weights."""
    num_assistant_tokens: int | None = None
    """Most tokens that the assistant drafts before the model checks them (the speculation length n of Appendix B.4). A
    draft ends earlier if the assistant is not sure of its next token (transformers' `assistant_confidence_threshold`,
    0.4 at first). Default: 20, which is transformers' own. Needs `assistant_model`."""
    revision: str | None = None
    """Branch, tag or commit of the checkpoint on the Hugging Face Hub."""
    trust_remote_code: bool = False
    """Whether code that comes with the checkpoint may run."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_model_len", "num_assistant_tokens"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, positive_int(name, value))

    def check(self, side: str, model: str, attention: bool = False) -> Any:
        """Return the checkpoint's configuration. Refuse arguments and checkpoints that cannot work, models without
        vision, and, with `attention`, models that cannot give attention weights, as far as one knows before the model
        is loaded. Raises `ArgumentError`."""
        import torch

        if attention:
            self.check_attention(side)
        if self.dtype != "auto" and not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise ArgumentError(
                f"{side}_dtype={self.dtype} is not a type of PyTorch: expected float32, bfloat16, ... or auto."
            )
        if str(self.device).startswith("cuda") and not torch.cuda.is_available():
            raise ArgumentError(f"{side}_device={self.device} needs a GPU, and PyTorch finds none. Leave it out.")
        config = _configuration(side, model, revision=self.revision, trust_remote_code=self.trust_remote_code)
        if self.assistant_model is not None:
            assistant = _configuration(f"{side}_assistant_model", self.assistant_model)
            size, drafted = (getattr(one.get_text_config(), "vocab_size", None) for one in (config, assistant))
            if size != drafted:  # transformers refuses each call
                raise ArgumentError(
                    f"{side}_assistant_model={self.assistant_model} has a vocabulary of {drafted} tokens, and "
                    f"{side}={model} one of {size}. Choose an assistant with the same tokenizer, most often a smaller "
                    "model of the same family."
                )
        elif self.num_assistant_tokens is not None:
            raise ArgumentError(
                f"{side}_num_assistant_tokens={self.num_assistant_tokens} needs {side}_assistant_model, the checkpoint "
                "that drafts the tokens. Set it, or leave num_assistant_tokens out."
            )
        from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

        # transformers lists the models with vision. It does not list a checkpoint with its own code (`auto_map`), nor
        # every checkpoint with a vision configuration; both are accepted.
        model_class: Any = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(config), None)
        if model_class is None and not hasattr(config, "auto_map") and not hasattr(config, "vision_config"):
            raise text_only_error(side, model, config.architectures)
        if attention and model_class is not None and not supports_attention(model_class):
            raise ArgumentError(
                f"{side}={model} cannot give attention weights: {model_class.__name__} does not use transformers' "
                "attention interface with `sdpa`. Choose another model, or use transfer=full."
            )
        return config

    def check_attention(self, side: str) -> None:
        """Refuse arguments with which an engine cannot give attention weights. Raises `ArgumentError`."""
        for name, possible in (("assistant_model", (None,)), ("attn_implementation", (None, "sdpa"))):
            if (value := getattr(self, name)) not in possible:
                raise ArgumentError(
                    f"{side}_{name}={value} gives no attention weights. Leave it out, or use transfer=full."
                )


def _configuration(argument: str, model: str, **source: Any) -> Any:
    from transformers import AutoConfig

    check_checkpoint(argument, model)
    try:
        return AutoConfig.from_pretrained(os.path.expanduser(model), **source)
    except Exception as error:
        raise ArgumentError(f"{argument}={model}: its configuration cannot be read. {error_text(error)}") from error


def device_of(options: TransformersOptions) -> str:
    """Return the device of the models: the user's, else a GPU if there is one."""
    import torch

    if options.device:
        return options.device
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
