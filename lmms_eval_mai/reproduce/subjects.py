"""What the runs are about: a benchmark of our tasks, or another lmms-eval task."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Subject:
    """A benchmark of our tasks, or another lmms-eval task. `tasks.py` loads it."""

    name: str
    benchmark: str | None
    """None: another lmms-eval task."""
    documents: int
    """Documents that a run answers."""
    samples: bool
    """Whether its answers are sampled (temperature above 0), so that no call of it may be shared."""

    def task(self, suffix: str) -> str:
        """Return the task of a method on this subject."""
        return f"{self.name}_{suffix}" if suffix else self.name
