"""The arguments of the `transformers` engine."""

import dataclasses

from lmms_eval_mai.engines.arguments import positive_int
from lmms_eval_mai.engines.checkpoints import check_checkpoint
from lmms_eval_mai.errors import ArgumentError, EngineUnavailable

PERFORMANCE_ARGUMENTS = {"batch_size", "devices", "device"}


@dataclasses.dataclass(frozen=True)
class TransformersOptions:
    """Arguments of the engine, `small_<name>` / `large_<name>` / `<name>` for both."""

    device: str | None = None
    """`cuda:1`, `cpu`, ...; `auto` spreads the model over all there are. None: the first GPU, or the CPU."""
    dtype: str = "auto"
    """`float32`, `bfloat16`, ...; `auto` is the checkpoint's own."""
    attn_implementation: str | None = None
    """`sdpa`, `eager`, `flash_attention_2`, ...; None leaves it to transformers."""
    batch_size: int = 8
    """Calls that are answered together."""
    max_model_len: int | None = None
    """Tokens of prompt and answer; None: what the model was made for."""
    assistant_model: str | None = None
    """A checkpoint that drafts for this one. Calls are then answered one by one, as in Table 12."""
    revision: str | None = None
    """Branch, tag or commit of the checkpoint on the Hugging Face Hub."""
    trust_remote_code: bool = False
    """Whether code that comes with the checkpoint may run."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_model_len"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, positive_int(name, value))

    def check(self, side: str, model: str) -> None:
        """Refuse what cannot be loaded. Raises `ArgumentError` or `EngineUnavailable`."""
        import torch

        check_checkpoint(side, model)
        if self.assistant_model is not None:
            check_checkpoint(f"{side}_assistant_model", self.assistant_model)
        if self.dtype != "auto" and not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise ArgumentError(f"{side}_dtype={self.dtype} is no type of torch: give float32, say.")
        device = str(self.device or "")
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise EngineUnavailable(f"{side}_device={device}: PyTorch finds no GPU here. Leave it out.")
