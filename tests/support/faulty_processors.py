"""Logits processors for vLLM that raise errors inside its core, as a missing library or a kernel does."""

from typing import Any

from vllm.v1.sample.logits_processor import LogitsProcessor


class FailsAtStart(LogitsProcessor):
    def __init__(self, *_: Any) -> None:
        raise ModuleNotFoundError("No module named 'kernels'")

    def apply(self, logits: Any) -> Any:
        return logits

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None: ...


class FailsInACall(FailsAtStart):
    def __init__(self, *_: Any) -> None: ...

    def apply(self, logits: Any) -> Any:
        raise RuntimeError("CPU attention requires BF16.\nCompile with a debugger.")
