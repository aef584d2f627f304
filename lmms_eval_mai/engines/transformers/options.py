"""The arguments of the `transformers` engine."""

import dataclasses
import os
from typing import Any

from lmms_eval_mai.engines.arguments import positive_int
from lmms_eval_mai.engines.checkpoints import check_checkpoint, text_only_error
from lmms_eval_mai.errors import ArgumentError, EngineUnavailable

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

    def check(self, side: str, model: str) -> None:
        """Refuse checkpoints, types and devices that cannot work, and models without vision. Raises `ArgumentError` or
        `EngineUnavailable`."""
        import torch

        check_checkpoint(side, model)
        if self.assistant_model is not None:
            check_checkpoint(f"{side}_assistant_model", self.assistant_model)
            self._check_vocabulary(side, model, self.assistant_model)
        elif self.num_assistant_tokens is not None:
            raise ArgumentError(
                f"{side}_num_assistant_tokens={self.num_assistant_tokens} needs {side}_assistant_model, the checkpoint "
                "that drafts the tokens. Set it, or leave num_assistant_tokens out."
            )
        if self.dtype != "auto" and not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise ArgumentError(
                f"{side}_dtype={self.dtype} is not a type of PyTorch: expected float32, bfloat16, ... or auto."
            )
        device = str(self.device or "")
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise EngineUnavailable(
                f"{side}_device={device} needs a GPU, and PyTorch finds none. Leave {side}_device out."
            )
        self._check_reads_images(side, model)

    def argument_obstacle(self, side: str) -> str | None:
        """Return the reason why an engine with these arguments cannot give attention weights, as a sentence. None: the
        arguments allow it."""
        if self.assistant_model is not None:
            return (
                f"{side}_assistant_model={self.assistant_model} and attention weights cannot be used together. Leave "
                f"{side}_assistant_model out, or use transfer=full."
            )
        if self.attn_implementation not in (None, "sdpa"):
            return (
                f"{side}_attn_implementation={self.attn_implementation} gives no attention weights. Leave it out, or "
                "use transfer=full."
            )
        return None

    def attention_obstacle(self, side: str, model: str) -> str | None:
        """Return the reason why the engine cannot give attention weights, as a sentence. None: it can, as far as one
        knows before the model is loaded."""
        if (obstacle := self.argument_obstacle(side)) is not None:
            return obstacle
        from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING as CLASSES

        config = self._config_of(model)
        model_class: Any = CLASSES.get(type(config), None)
        if model_class is None or supports_attention(model_class):
            return None
        return (
            f"{side}={model} cannot give attention weights: {model_class.__name__} does not use transformers' "
            "attention interface with `sdpa`. Choose another model, or use transfer=full."
        )

    def decoder_layers(self, model: str) -> int | None:
        """Return the number of a checkpoint's decoder layers. None: its configuration cannot be read."""
        config = self._config_of(model)
        return None if config is None else getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)

    def _config_of(self, model: str) -> Any:
        """Return a checkpoint's configuration. None: it cannot be read. The start of the engine fails for the same
        reason, and reports it."""
        from transformers import AutoConfig

        source = {"revision": self.revision, "trust_remote_code": self.trust_remote_code}
        try:
            return AutoConfig.from_pretrained(os.path.expanduser(model), **source)
        except Exception:
            return None

    def _check_vocabulary(self, side: str, model: str, assistant: str) -> None:
        """Refuse an assistant with another number of tokens, because transformers refuses each call with it. Raises
        `ArgumentError`."""
        configs = self._config_of(model), TransformersOptions()._config_of(assistant)
        if None in configs:
            return
        size, drafted = (getattr(config.get_text_config(), "vocab_size", None) for config in configs)
        if size != drafted:
            raise ArgumentError(
                f"{side}_assistant_model={assistant} has a vocabulary of {drafted} tokens, and {side}={model} one of "
                f"{size}. Choose an assistant with the same tokenizer, most often a smaller model of the same family."
            )

    def _check_reads_images(self, side: str, model: str) -> None:
        """Refuse a model without vision. Raises `ArgumentError`.

        transformers lists the models with vision. It does not list a checkpoint with its own code (`auto_map`), nor
        every checkpoint with a vision configuration; both are accepted.
        """
        from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

        config = self._config_of(model)
        if config is None:
            return
        supported = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING or hasattr(config, "auto_map")
        if not supported and not hasattr(config, "vision_config"):
            raise text_only_error(side, model, config.architectures)


def device_of(options: TransformersOptions) -> str:
    """Return the device of the models: the user's, else a GPU if there is one."""
    import torch

    if options.device:
        return options.device
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
