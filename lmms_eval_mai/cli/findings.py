"""The lines of the report of `lmms-eval-mai doctor`."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from lmms_eval_mai import redaction
from lmms_eval_mai.errors import MaiError

INDENT = 10
"""Columns before the further lines of a text."""

Mark = Literal["ok", "PROBLEM", "warning", "optional", "skipped"]
"""`PROBLEM`: the command fails. `warning`: it runs, but perhaps not as the user wants. `optional`: a package is missing
that the command may not need. `skipped`: this was not checked."""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    mark: Mark
    text: str
    """What was found. For a problem or a warning, also what to do."""


def report(findings: Iterable[Finding]) -> int:
    """Print the findings as they come. Returns the exit code."""
    problems = 0
    for finding in findings:
        problems += finding.mark == "PROBLEM"
        text = finding.text.replace("\n", "\n" + " " * INDENT)
        print(f"{finding.mark:>8}  {finding.name:<14} {text}", flush=True)
    print(f"\n{problems} problem{'s' * (problems != 1)}." if problems else "\nNo problem found.")
    return 1 if problems else 0


def error_text(error: BaseException) -> str:
    """Return the message as one line: whole for errors of this package, shortened for errors of other libraries."""
    return " ".join(str(error).split()) if isinstance(error, MaiError) else redaction.error_text(error)
