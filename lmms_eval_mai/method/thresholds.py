"""How sure a model is of its short answer, and the threshold of a stop that asks for it. Not in the paper.

The paper's first check (Section 4.1) trusts two models that guess alike. A stop can also ask for the probability that a
model gave to its own short answer of Eq. 5, p = P(A_short^l | Q + Prompt_simple) = exp(Call.answer_logprob).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT = 0.9
"""The threshold if the user gives none. It is not calibrated for any pair."""

NEVER = 2.0
"""A threshold that no probability reaches."""


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of a method."""

    min_confidence: float = DEFAULT
    """The least probability of a confident answer, above 0 and at most 1."""
    by_benchmark: Mapping[str, float] = field(default_factory=dict)
    """Benchmark -> its own threshold, from a file of `lmms-eval-mai calibrate`."""

    def of(self, benchmark: str) -> float:
        """Return the threshold of a benchmark."""
        return self.by_benchmark.get(benchmark, self.min_confidence)
