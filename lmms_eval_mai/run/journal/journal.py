"""The journal of a run: every finished call is on the disk before its answer is used.

Each rank of a run has one file. Its name is the digest of the run's fingerprint, so the same command finds it again.
`files.py` describes the file, `writer.py` opens and writes it, `lock.py` keeps a second run away from it, and
`removal.py` removes it when the run is complete.
"""

import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from lmms_eval_mai.contract import Call, CallKey
from lmms_eval_mai.run import fingerprint
from lmms_eval_mai.run.fingerprint import Fingerprint
from lmms_eval_mai.run.journal.call_records import call_of, fields_of
from lmms_eval_mai.run.journal.files import (
    FORMAT,
    Line,
    SampleKey,
    journal_io_errors,
    line_of,
    read_records,
    record_at,
)
from lmms_eval_mai.run.journal.removal import finish_removal, remove_at_exit, remove_now
from lmms_eval_mai.run.journal.unfinished_runs import warn_of_unfinished_run
from lmms_eval_mai.run.journal.writer import JournalWriter


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
        self._calls: dict[tuple[CallKey, str], Line] = {}
        """Finished calls of earlier processes, by key and prompt digest."""
        self._others: list[int] = []
        """Open files of the other ranks' journals."""
        self._added = False
        finish_removal(self.path)
        self._writer = JournalWriter(self.path, self._reader(self.path))
        try:
            with journal_io_errors(folder):
                for path in self._files_of_other_ranks():
                    self._others.append(os.open(path, os.O_RDONLY))
                    read_records(self._others[-1], path, self._reader(path))
                if not self._writer.length:
                    named = set(tasks)
                    warn_of_unfinished_run(folder, current, named, self.digest)
                    self._writer.write(line_of({"format": FORMAT, "fingerprint": current, "tasks": sorted(named)}))
        except BaseException:
            self._close_files()
            raise

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
        line = self._calls.get((key, prompt))
        return None if line is None else call_of(key, record_at(line)["call"])

    async def add_call(self, call: Call, prompt: str, images: list[str]) -> None:
        """Add a finished call. `prompt`: the digest of its prompt. `images`: the hashes of its images."""
        self._added = True
        key = call.key
        names = (key.task, key.doc_id, key.repeat, key.side, key.stage)
        await self._append({"key": names, "prompt": prompt, "images": images, "call": fields_of(call)})

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
        self._writer.end()
        if self.empty:
            self.path.unlink(missing_ok=True)
        self._close_files()

    def _close_files(self) -> None:
        for file in self._others:
            os.close(file)
        self._writer.close()

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

    def _reader(self, path: Path) -> Callable[[dict[str, Any], Line], None]:
        """Return a function that reads one record of a rank's file."""
        seconds = self._seconds.setdefault(path.stem, {})

        def use(record: dict[str, Any], line: Line) -> None:
            if "call" in record:
                self._calls[CallKey(*record["key"]), record["prompt"]] = line
            elif "exit" in record:
                task, doc_id, repeat = record["sample"]
                seconds[task, doc_id, repeat] = seconds.get((task, doc_id, repeat), 0.0) + record["wall_s"]

        return use
