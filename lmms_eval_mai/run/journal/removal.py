"""Removes the journal of a completed run.

A run is complete when lmms-eval has scored it. In library use the caller has the results at that moment, and the
journal is removed at once. Under lmms-eval's command the results are not on the disk yet. There the journal is removed
when the process ends, if the results were written by then; else the same command finds all answers again.

A journal may also hold samples of a longer run that is not complete, for example after `--limit 100`. Then it stays.
With several ranks a rank does not know the samples of the others, so the journals are removed in any case.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from multiprocessing import util
from pathlib import Path

from lmms_eval_mai.errors import JournalError
from lmms_eval_mai.run.at_exit import at_exit
from lmms_eval_mai.run.journal.files import SampleKey, lines_of
from lmms_eval_mai.run.journal.lock import locked

_removals: "dict[Path, util.Finalize[None]]" = {}
"""Journal file that waits for removal -> its removal. The files of all ranks of a run share one."""


def remove_now(files: list[Path], keys: set[SampleKey] | None) -> None:
    """Remove the journals of all ranks of a run, unless they hold a sample that is not in `keys`. None: remove them
    whatever they hold.

    They stay if another run writes one of them: the same command may have been started again while lmms-eval scored
    this run.
    """
    with contextlib.suppress(OSError, JournalError), contextlib.ExitStack() as locks:
        opened = [locks.enter_context(locked(file)) for file in sorted(files)]  # ranks remove them in the same order
        if keys is None or all(_key_of(line) in keys for file in opened for line in _records(file)):
            for file in files:
                file.unlink()


def remove_at_exit(files: list[Path], keys: set[SampleKey] | None, results_written: Callable[[], bool]) -> None:
    """Call `remove_now` when this process ends by itself, if `results_written()` is True then."""

    def remove() -> None:
        with contextlib.suppress(OSError):
            if results_written():
                remove_now(files, keys)

    removal = at_exit(remove)
    _removals.update(dict.fromkeys(files, removal))


def waits_for_removal(file: Path) -> bool:
    """Return whether this process will remove the journal at its end."""
    return file in _removals


def finish_removal(file: Path) -> None:
    """Finish a planned removal of this journal now, and not at the end of the process: remove the journal if the
    results are written. A new run calls this before it opens the journal."""
    removal = _removals.get(file)
    if removal is not None:
        removal()
        for waiting in [waiting for waiting, one in _removals.items() if one is removal]:
            del _removals[waiting]


def keep() -> list[Path]:
    """Cancel all removals. Returns the journals that stay."""
    for removal in _removals.values():
        removal.cancel()
    kept = list(_removals)
    _removals.clear()
    return kept


def _records(file: int) -> Iterator[bytes]:
    return (line for offset, line in lines_of(file) if offset)  # without the head


def _key_of(line: bytes) -> SampleKey | None:
    try:
        record = json.loads(line)
        task, doc_id, repeat = (record["key"] if "key" in record else record["sample"])[:3]
    except (ValueError, TypeError, KeyError):
        return None
    return task, doc_id, repeat
