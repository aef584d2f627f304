"""The journal of a run: every finished call is on the disk before its answer is used.

Each rank of a run has one file. Its name is the digest of the run's fingerprint, so the same command finds it again.
`files.py` describes the file, `writer.py` writes it, `lock.py` keeps a second run away from it, and
`removal.py` removes it when the run is complete.
"""

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from lmms_eval_mai.contract import Call, CallKey
from lmms_eval_mai.run import fingerprint
from lmms_eval_mai.run.fingerprint import Fingerprint
from lmms_eval_mai.run.journal.call_records import call_of, fields_of
from lmms_eval_mai.run.journal.files import FORMAT, SampleKey, journal_io_errors, line_of, read_records, sync_folder
from lmms_eval_mai.run.journal.lock import close_locked, open_locked
from lmms_eval_mai.run.journal.removal import finish_removal, remove_at_exit, remove_now
from lmms_eval_mai.run.journal.unfinished_runs import warn_of_unfinished_run
from lmms_eval_mai.run.journal.writer import JournalWriter


class _LineLocation(NamedTuple):
    """The place of a line in a file. The texts of calls stay on the disk until they are needed."""

    file: int
    offset: int
    length: int


class Journal:
    """The journal of one rank. It reads the journals of all ranks of earlier runs with the same fingerprint, and writes
    only its own file.

    Its coroutines run on the event loop of the engines. It may be closed in any thread.
    """

    def __init__(
        self, folder: Path, current: Fingerprint, tasks: Iterable[str], rank: int = 0, world_size: int = 1
    ) -> None:
        """Raises `JournalError` if the folder cannot be written, or if another run writes the same journal."""
        self.digest = fingerprint.digest({**current, "format": str(FORMAT)})
        self.path = folder / f"{self.digest}-{rank}of{world_size}.jsonl"
        self.closed = False
        self._seconds: dict[str, dict[SampleKey, float]] = {}
        """For each journal file, by name: the wall seconds of each finished sample."""
        self._calls: dict[tuple[CallKey, str], _LineLocation] = {}
        """Finished calls of earlier processes, by key and prompt digest."""
        self._others: list[int] = []
        """Open files of the other ranks' journals."""
        self._added = False
        finish_removal(self.path)
        with journal_io_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as undo:
                self._file = open_locked(self.path)
                undo.callback(self._close_files)
                sync_folder(folder)
                end = self._read_files()
                os.ftruncate(self._file, end)  # cut off a torn last line
                self._writer = JournalWriter(self._file, self.path)
                undo.callback(self._writer.close)
                if end == 0:
                    named = set(tasks)
                    warn_of_unfinished_run(folder, current, named, self.digest)
                    self._writer.write(line_of({"format": FORMAT, "fingerprint": current, "tasks": sorted(named)}))
                undo.pop_all()

    @property
    def calls(self) -> int:
        """The number of finished calls of earlier processes."""
        return len(self._calls)

    @property
    def empty(self) -> bool:
        """Whether the journal holds nothing to resume."""
        return not self._calls and not self._added

    def done(self, samples: Collection[SampleKey]) -> set[SampleKey]:
        """Return those of these samples that earlier processes finished."""
        return set().union(*self._seconds.values()).intersection(samples)

    def wall_s(self, samples: Collection[SampleKey]) -> float:
        """Return the wall time that earlier processes spent on these samples. The ranks of one run work at the same
        time, so only the slowest rank counts. Times of runs with different numbers of ranks are added."""
        walls: dict[str, float] = {}
        for name, seconds in self._seconds.items():
            ranks = name.rpartition("of")[2]
            walls[ranks] = max(walls.get(ranks, 0.0), sum(seconds.get(sample, 0.0) for sample in samples))
        return sum(walls.values())

    def find(self, key: CallKey, prompt: str) -> Call | None:
        """Return the finished call with this key and prompt digest, if there is one."""
        location = self._calls.get((key, prompt))
        if location is None:
            return None
        record = json.loads(os.pread(location.file, location.length, location.offset))
        return call_of(key, record["call"])

    async def add_call(self, call: Call, prompt: str, images: list[str]) -> None:
        """Add a finished call. `prompt`: the digest of its prompt. `images`: the hashes of its images."""
        self._added = True
        key = call.key
        names = (key.task, key.doc_id, key.repeat, key.side, key.stage)
        record = {"key": names, "prompt": prompt, "images": images, "call": fields_of(call)}
        await self._append(record)

    async def add_exit(self, sample: SampleKey, exit: str, wall_s: float) -> None:
        """Add a finished sample. `wall_s`: seconds since the previous sample finished; the sum over all samples is the
        wall time."""
        await self._append({"sample": sample, "exit": exit, "wall_s": round(wall_s, 3)})

    async def add_error(self, sample: SampleKey, error: Exception) -> None:
        """Add a failed sample. Failed samples are run again when the run is resumed."""
        await self._append({"sample": sample, "error": type(error).__name__, "message": str(error)})

    def close(self) -> None:
        """Wait until everything is on the disk, and close the files. A journal without a call is deleted."""
        if self.closed:
            return
        self.closed = True
        self._writer.close()
        if self.empty:
            self.path.unlink(missing_ok=True)
        self._close_files()

    def _close_files(self) -> None:
        for file in self._others:
            os.close(file)
        close_locked(self._file, self.path)

    def complete(self, keys: set[SampleKey] | None, results_written: Callable[[], bool] | None = None) -> None:
        """Remove the journals of all ranks: the run of these samples is complete. None: the samples are not known.

        `results_written` tells at the end of this process whether the results are on the disk. None: the caller has
        them already, so remove the journals now.
        """
        files = [self.path, *self._files_of_other_ranks()]
        if results_written is None:
            remove_now(files, keys)
        else:
            remove_at_exit(files, keys, results_written)

    async def _append(self, record: dict[str, Any]) -> None:
        await self._writer.append(line_of(record))

    def _files_of_other_ranks(self) -> list[Path]:
        """Return the journals of the other ranks, and of runs of the same command with another number of ranks."""
        return sorted(path for path in self.path.parent.glob(f"{self.digest}-*.jsonl") if path != self.path)

    def _read_files(self) -> int:
        """Read the journals of all ranks. Returns the offset at which the last whole line of this rank's file ends."""
        others = self._files_of_other_ranks()  # listed once: another rank may create its file at any moment
        self._others = [os.open(path, os.O_RDONLY) for path in others]
        for path, file in zip(others, self._others, strict=True):
            self._read(path, file)
        return self._read(self.path, self._file)

    def _read(self, path: Path, file: int) -> int:
        """Read one file. Returns the offset at which its last whole line ends."""
        seconds = self._seconds.setdefault(path.stem, {})

        def use(record: dict[str, Any], offset: int, length: int) -> None:
            if "call" in record:
                self._calls[CallKey(*record["key"]), record["prompt"]] = _LineLocation(file, offset, length)
            elif "exit" in record:
                task, doc_id, repeat = record["sample"]
                seconds[task, doc_id, repeat] = seconds.get((task, doc_id, repeat), 0.0) + record["wall_s"]

        return read_records(file, path, use)
