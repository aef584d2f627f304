"""The methods of the paper as modes of `mai_cascade` and variants of a benchmark's task."""

from dataclasses import dataclass

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.paper.prompts import VARIANTS

OWN = ""
"""The suffix of another lmms-eval task, which has its own prompt."""


@dataclass(frozen=True)
class Method:
    """One method: a mode, and the prompt of the task."""

    mode: str
    suffix: str
    """The suffix of the task's name: a key of `VARIANTS`, or `OWN`."""

    @property
    def prompt(self) -> str:
        """Return the paper's name of the prompt: S, E, R, E(S2) or R(S2)."""
        if self.suffix == OWN:
            return "own prompt"
        variant, two_stage = VARIANTS[self.suffix]
        return variant + "(S2)" * two_stage

    @property
    def title(self) -> str:
        """Return the name for people."""
        if self.mode in SIDES:
            return f"{self.mode}, {self.prompt}"
        name = {"transfer": "Full RT", "cascade": "MAI"}[self.mode]
        return f"{name}, {self.prompt}" if self.suffix.endswith("s2") else name


METHODS = (
    *(Method(side, suffix) for side in SIDES for suffix in (*VARIANTS, OWN)),
    *(Method(mode, suffix) for mode in ("transfer", "cascade") for suffix in ("s", OWN)),
    Method("cascade", "r_s2"),
)
"""All methods, in the order of their runs: single models first, so that their calls are made in runs of their own."""
