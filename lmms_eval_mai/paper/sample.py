"""What walks through the cascade (`Sample`) and what comes out (`Trace`). Plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lmms_eval_mai.engines.base import Call, Message, Sampling, Side, Stage
from lmms_eval_mai.paper.agreement import Benchmark, Doc, Verification
from lmms_eval_mai.paper.prompts import Kind, Variant

Exit = Literal["agree_short", "agree_think", "transfer", "small", "large"]
"""Where a sample leaves. agree_short: MV small(S)/large(S). agree_think: MV small(R)/large(S). transfer: RT.
`small` and `large` are the only exits of the modes of those names."""

EXITS: dict[str, tuple[Exit, ...]] = {
    "cascade": ("agree_short", "agree_think", "transfer"),
    "transfer": ("transfer",),
    "small": ("small",),
    "large": ("large",),
}
"""Mode -> the exits it has."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One document, opened: its images are decoded. Dropped as soon as its trace is there."""

    task: str
    doc_id: int
    repeat: int
    question: tuple[Message, ...]
    """Images and question; a stage's text is appended to the last turn."""
    doc: Doc
    benchmark: Benchmark
    kind: Kind
    variant: Variant | None
    """The task's own prompt; None for a task that is not ours, whose own prompt is the question itself."""
    two_stage: bool
    """Whether the small model's answer comes from a second stage (Eq. 8, the `_s2` tasks)."""
    sampling: Mapping[Stage, Sampling]


@dataclass(frozen=True, slots=True)
class Trace:
    """What happened to one sample."""

    exit: Exit
    answer: Call
    """The call whose text is the final answer."""
    calls: tuple[Call, ...]
    verifications: tuple[Verification, ...]
    """In order: short answers (Eq. 5-6), then thought answer against the large model's short one."""

    def side(self, side: Side) -> tuple[Call, ...]:
        """The calls to one engine."""
        return tuple(call for call in self.calls if call.key.side == side)
