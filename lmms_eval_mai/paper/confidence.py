"""The choices of a cascade, and the first check by confidence. The paper has only the defaults.

The paper's first check (Section 4.1) trusts two models that guess alike. It can also ask for the probability that the
large model gave to its own short answer of Eq. 5, p = P(A_short^l | Q + Prompt_simple) = exp(Call.answer_logprob):

    verify=agreement     A_short^s and A_short^l agree
    verify=confidence    p >= min_confidence; the small model gives no short answer
    verify=both          A_short^s and A_short^l agree, and p >= min_confidence
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from lmms_eval_mai.contract import Call, Side

Verify = Literal["agreement", "confidence", "both"]

DEFAULT = 0.9
"""The threshold if the user gives none. It is not calibrated for any pair."""

NEVER = 2.0
"""A threshold that no probability reaches: the small model always thinks."""


@dataclass(frozen=True, order=True)
class Choices:
    """How a cascade checks, and who thinks. The defaults are the paper's."""

    verify: Verify = "agreement"
    """The first check."""
    thinker: Side = "small"
    """The model that thinks after a failed first check."""
    second_check: Literal["on", "off"] = "on"
    """Whether the answer of the small model's thinking is verified. `off`: the thinking is always transferred."""

    @property
    def later(self) -> dict[str, str]:
        """The arguments about what follows the first check that are not the paper's."""
        return {
            name: value
            for name in ("thinker", "second_check")
            if (value := str(getattr(self, name))) != getattr(Choices, name)
        }

    @property
    def written(self) -> str:
        """All choices as arguments."""
        return ",".join(f"{name}={value}" for name, value in asdict(self).items())

    def __str__(self) -> str:
        """Return `verify`, and what is not the paper's, as arguments."""
        return ",".join(f"{name}={value}" for name, value in {"verify": self.verify, **self.later}.items())


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of a first check by confidence."""

    min_confidence: float = DEFAULT
    """The least probability of a confident answer, above 0 and at most 1."""
    by_benchmark: Mapping[str, float] = field(default_factory=dict)
    """Benchmark -> its own threshold, from a file of `lmms-eval-mai calibrate`."""

    def of(self, benchmark: str) -> float:
        """Return the threshold of a benchmark."""
        return self.by_benchmark.get(benchmark, self.min_confidence)


def is_sure(answer: Call, min_confidence: float) -> bool:
    """Return whether a model gave its answer at least this probability. False: less, or the engine did not report it.

    Logarithms are compared, as `calibrate` does, so its threshold decides each question as it did there.
    """
    return answer.answer_logprob is not None and answer.answer_logprob >= math.log(min_confidence)
