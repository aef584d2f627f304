"""Scripts with faults at random, for engines that must survive them."""

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from lmms_eval_mai.contract import CallKey, Prompt
from lmms_eval_mai.engines.scripted.script import Answer, Script


@dataclass
class FaultyScript:
    """Adds faults to another script.

    The seed and the call's name decide which calls have a fault, so the order of the calls does not matter. A call that
    fails, or whose text is noise, has this fault at every attempt. A crash is drawn for each attempt, so a call that
    crashed the engine may be answered when it is retried. A call that hangs ends in `CallTimeout`, and a run does not
    retry it.
    """

    script: Script
    seed: int
    error_rate: float = 0.0
    """Share of calls that fail."""
    garbage_rate: float = 0.0
    """Share of calls whose text is noise."""
    hang_rate: float = 0.0
    """Share of attempts that never end."""
    death_rate: float = 0.0
    """Share of attempts that crash the engine."""
    _attempts: Counter[CallKey] = field(default_factory=Counter)

    def __call__(self, prompt: Prompt) -> Answer:
        key = prompt.key
        answer = self.script(prompt)
        self._attempts[key] += 1
        per_call = random.Random(f"{self.seed} {key}")
        per_attempt = random.Random(f"{self.seed} {key} {self._attempts[key]}")
        if per_call.random() < self.error_rate:
            return replace(answer, fault="error")
        if per_call.random() < self.garbage_rate:
            noise = per_call.randbytes(per_call.randint(0, 200)).decode("latin-1")
            answer = replace(answer, text=noise)
        if per_attempt.random() < self.death_rate:
            return replace(answer, fault="death")
        if per_attempt.random() < self.hang_rate:
            return replace(answer, fault="hang")
        return answer
