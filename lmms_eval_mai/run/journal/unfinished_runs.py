"""Warns if an unfinished run of the same tasks cannot be resumed, and names the arguments that differ."""

from pathlib import Path

from loguru import logger

from lmms_eval_mai.run import fingerprint
from lmms_eval_mai.run.fingerprint import Fingerprint
from lmms_eval_mai.run.journal.files import FORMAT, head_of, modified_time
from lmms_eval_mai.run.journal.lock import is_locked
from lmms_eval_mai.run.journal.removal import waits_for_removal

SHOWN_DIFFERENCES = 5


def warn_of_unfinished_run(folder: Path, current: Fingerprint, tasks: set[str], own_digest: str) -> None:
    """Warn of the newest journal in `folder` of an unfinished run with any of these tasks.

    There is no warning about a run that still writes its journal, about a run that this process has completed, or about
    a run in another mode, with other models or with other kinds of engines: people run these one after the other to
    compare them.
    """
    others = [path for path in folder.glob("*.jsonl") if not path.name.startswith(own_digest)]
    for path in sorted(others, key=modified_time, reverse=True):
        if waits_for_removal(path) or is_locked(path):
            continue
        head = head_of(path)
        shared = tasks & set(head.get("tasks", ()))
        if shared and fingerprint.compared(head["fingerprint"]) == fingerprint.compared(current):
            differ = fingerprint.differences(head["fingerprint"], current) or [
                f"format was {head.get('format')} and is {FORMAT}"
            ]
            if (more := len(differ) - SHOWN_DIFFERENCES) > 0:
                differ = [*differ[:SHOWN_DIFFERENCES], f"{more} more differ{'s' * (more == 1)}"]
            logger.warning(
                f"mai_cascade: an unfinished run of {', '.join(sorted(shared))} is not resumed: {'; '.join(differ)}. "
                f"Its journal stays: {path}. To resume that run, start it with its earlier values. "
                "If you do not need that run, remove this file."
            )
            return
