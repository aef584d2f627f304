"""The file of finished calls that all runs of the command share. A call is on the disk before its answer is used.

The file has JSON lines: a head, then one line for each call, with the digest of its model, the digest of its prompt,
and the run that made it.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import NamedTuple

from loguru import logger

from lmms_eval_mai.contract import Call, CallKey
from lmms_eval_mai.errors import JournalError
from lmms_eval_mai.run.journal.call_records import call_of, fields_of
from lmms_eval_mai.run.journal.files import journal_io_errors, line_of, lines_of, sync_folder
from lmms_eval_mai.run.journal.lock import check_not_held, lock, release
from lmms_eval_mai.run.journal.writer import JournalWriter

FORMAT = 1
"""Increase this number if files of older versions cannot be read any more."""


class _Line(NamedTuple):
    """The place of a call in the file. Its text stays on the disk until it is needed."""

    offset: int
    length: int


def _open_locked(path: Path) -> int:
    """Open the file for this command alone. Raises `JournalError` if another one has it."""
    file = None
    try:
        check_not_held(path)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        lock(file, path)
    except JournalError:
        if file is not None:
            os.close(file)
        raise JournalError(
            f"Another `lmms-eval-mai reproduce` writes {path}. Wait until it ends, or give another --output_path."
        ) from None
    return file


@dataclasses.dataclass(frozen=True)
class SharedCall:
    """A finished call."""

    run: str
    """The run that made it."""
    call: Call


class SharedCalls:
    """The calls that were made so far. Opened and closed on the main thread; `find` and `add` run on the event loop of
    the engines."""

    def __init__(self, path: Path) -> None:
        """Raises `JournalError` if the file cannot be written, or if another command writes it."""
        self.path = path
        self.run = ""
        """The run that makes the next calls."""
        self._lines: dict[tuple[str, str], _Line] = {}
        with journal_io_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _open_locked(path)
            sync_folder(path.parent)
            self._end = self._read()
            os.ftruncate(self._file, self._end)  # cut off a torn last line
            self._writer = JournalWriter(self._file, path)
            if self._end == 0:
                head = line_of({"format": FORMAT})
                self._writer.write(head)
                self._end = len(head)

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self._lines)

    def find(self, model: str, prompt: str) -> SharedCall | None:
        """Return the call of a prompt to a model, or None. `model`, `prompt`: their digests."""
        line = self._lines.get((model, prompt))
        if line is None:
            return None
        record = json.loads(os.pread(self._file, line.length, line.offset))
        return SharedCall(record["run"], call_of(CallKey(*record["key"]), record["call"]))

    async def add(self, model: str, prompt: str, call: Call) -> None:
        """Add a call of this run. The first call of a prompt is kept."""
        if (model, prompt) in self._lines:
            return
        line = line_of(
            {
                "model": model,
                "prompt": prompt,
                "run": self.run,
                "key": dataclasses.astuple(call.key),
                "call": fields_of(call),
            }
        )
        place = _Line(self._end, len(line))
        self._end += len(line)  # lines are written in the order of `append`
        await self._writer.append(line)
        self._lines.setdefault((model, prompt), place)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
        os.close(self._file)
        release(self.path)

    def _read(self) -> int:
        """Read the file. Returns the offset at which its last whole line ends."""
        end = damaged = 0
        for offset, line in lines_of(self._file):
            if not line.endswith(b"\n"):
                break
            end = offset + len(line)
            try:
                record = json.loads(line)
                if "call" in record:
                    CallKey(*record["key"])
                    self._lines.setdefault((record["model"], record["prompt"]), _Line(offset, len(line)))
            except (ValueError, TypeError, KeyError):
                damaged += 1
        if damaged:
            logger.warning(f"{damaged} lines of {self.path} are damaged. Their calls are made again.")
        return end
