"""What is done stays done: every finished call is on the disk before it counts.

One file a run and rank, JSON lines: a head (format, fingerprint, tasks), then a line for each call, each sample that
left (its exit) and each that failed. Its name is the fingerprint's digest, so the same command finds it again.

A line is written and fsynced before its call goes on; all lines that are ready share one fsync, in a thread of its
own. So neither a kill nor a power cut loses a finished call, and no sample waits for another's.
"""

import asyncio
import dataclasses
import errno
import fcntl
import json
import os
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from loguru import logger

from lmms_eval_mai.engines.base import Call, CallKey
from lmms_eval_mai.errors import JournalError
from lmms_eval_mai.run import fingerprint
from lmms_eval_mai.run.fingerprint import Fingerprint
from lmms_eval_mai.run.journal_files import (
    SampleKey,
    head_of,
    journal_io_errors,
    line_of,
    lines_of,
    modified_time,
    remove_at_exit,
    remove_now,
    sync_folder,
    write_error_text,
)

FORMAT = 2


class _LineLocation(NamedTuple):
    """Where a line is: texts stay on the disk until they are asked for."""

    file: int
    offset: int
    length: int


class Journal:
    """The journal of one rank. Reads what all ranks of an earlier run with the same fingerprint left, writes its own.

    Made and closed on the main thread; `append` is called on the event loop.
    """

    def __init__(
        self, folder: Path, ours: Fingerprint, tasks: Iterable[str], rank: int = 0, world_size: int = 1
    ) -> None:
        """Raises `JournalError` if the folder cannot be written or another run is writing the same journal."""
        self.digest = fingerprint.digest({**ours, "format": str(FORMAT)})
        self.path = folder / f"{self.digest}-{rank}of{world_size}.jsonl"
        self.closed = False
        self._seconds: dict[str, dict[SampleKey, float]] = {}
        self._calls: dict[tuple[CallKey, str], _LineLocation] = {}
        self._added = False
        self._broken: JournalError | None = None
        self._pending: list[bytes] = []
        self._batch: asyncio.Future[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "mai-journal")
        remove_now(self.path)
        with journal_io_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            sync_folder(folder)
            self._lock()
            others = self._left_by_others()  # once: another rank may make its own at any moment
            self._others = [os.open(path, os.O_RDONLY) for path in others]
            for path, file in zip((*others, self.path), (*self._others, self._file), strict=True):
                end = self._read(file, self._seconds.setdefault(path.stem, {}))
            os.ftruncate(self._file, end)  # a torn last line
            if end == 0:
                self._tell_of_others(ours, set(tasks))
                self._commit(line_of({"format": FORMAT, "fingerprint": ours, "tasks": sorted(set(tasks))}))

    @property
    def calls(self) -> int:
        """Finished calls of earlier processes."""
        return len(self._calls)

    @property
    def empty(self) -> bool:
        """Whether there is nothing in it to resume."""
        return not self._calls and not self._added

    def done(self, samples: Collection[SampleKey]) -> int:
        """How many of these earlier processes finished."""
        return len(set().union(*self._seconds.values()).intersection(samples))

    def wall_s(self, samples: Collection[SampleKey]) -> float:
        """Seconds that earlier processes walked for these. The ranks of one run walked at the same time."""
        walls: dict[str, float] = {}
        for name, seconds in self._seconds.items():
            ranks = name.rpartition("of")[2]
            walls[ranks] = max(walls.get(ranks, 0.0), sum(seconds.get(sample, 0.0) for sample in samples))
        return sum(walls.values())

    def find(self, key: CallKey, prompt: str) -> Call | None:
        """The finished call with this key and prompt digest."""
        place = self._calls.get((key, prompt))
        if place is None:
            return None
        record = json.loads(os.pread(place.file, place.length, place.offset))
        return Call(key=key, **record["call"])

    async def add_call(self, call: Call, prompt: str, images: list[str]) -> None:
        self._added = True
        figures = {f.name: getattr(call, f.name) for f in dataclasses.fields(Call) if f.name != "key"}
        await self.with_stage_text(
            {"key": dataclasses.astuple(call.key), "prompt": prompt, "images": images, "call": figures}
        )

    async def add_exit(self, sample: SampleKey, exit: str, wall_s: float) -> None:
        """`wall_s`: seconds of walking since the exit before, so that they add up."""
        await self.with_stage_text({"sample": sample, "exit": exit, "wall_s": round(wall_s, 3)})

    async def add_error(self, sample: SampleKey, error: Exception) -> None:
        await self.with_stage_text({"sample": sample, "error": type(error).__name__, "message": str(error)})

    async def flush(self) -> None:
        """Wait until all that was appended is on the disk."""
        if self._writer is not None:
            await self._writer

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self.empty:
            self.path.unlink(missing_ok=True)
        self._thread.shutdown()
        for file in (self._file, *self._others):
            os.close(file)

    def complete(self, walked: set[SampleKey] | None, written: Callable[[], bool] = lambda: True) -> None:
        """The run of these samples (None: of all) is complete, and nothing is left to resume, of any rank. The journal
        goes when this process ends well, or opens it again: lmms-eval has scored, but its results are not yet on the
        disk, which `written` tells then. Of a longer run it stays."""
        remove_at_exit(self.path, [self.path, *self._left_by_others()], walked, written)

    async def with_stage_text(self, record: dict[str, Any]) -> None:
        if self._broken is not None:
            raise self._broken  # a line after half a line would be lost with it
        loop = asyncio.get_running_loop()
        self._pending.append(line_of(record))
        if self._batch is None:
            self._batch = loop.create_future()
        batch = self._batch
        if self._writer is None or self._writer.done():
            self._writer = loop.create_task(self._write())
        await asyncio.shield(batch)  # one sample that is cancelled does not cancel the others

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while self._batch is not None:
            lines, self._pending = self._pending, []
            batch, self._batch = self._batch, None
            try:
                await loop.run_in_executor(self._thread, self._commit, b"".join(lines))
            except OSError as error:
                self._broken = JournalError(write_error_text(self.path, error))
                batch.set_exception(self._broken)
                batch.exception()  # those who wait may all be gone
            else:
                batch.set_result(None)

    def _commit(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        os.fsync(self._file)

    def _lock(self) -> None:
        try:
            # Of the process, not of the file: an engine's process that outlives ours by a moment holds no lock.
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                logger.warning(
                    f"mai_cascade: {self.path} cannot be locked ({error.strerror}): see that no two runs write it."
                )
                return
            raise JournalError(
                f"Another run with the same arguments is writing the journal {self.path}. Wait for it to end, or give "
                "this one a journal of its own with journal=FOLDER, or none with journal=off."
            ) from None

    def _left_by_others(self) -> list[Path]:
        """Journals of the other ranks, or of a run with another number of ranks."""
        return sorted(path for path in self.path.parent.glob(f"{self.digest}-*.jsonl") if path != self.path)

    def _read(self, file: int, seconds: dict[SampleKey, float]) -> int:
        """Take note of all lines; -> where the last whole one ends. Damaged ones are left out, and said."""
        end = damaged = 0
        for offset, line in lines_of(file):
            if not line.endswith(b"\n"):
                break
            end = offset + len(line)
            try:
                record = json.loads(line)
                if "call" in record:
                    self._calls[CallKey(*record["key"]), record["prompt"]] = _LineLocation(file, offset, len(line))
                elif "exit" in record:
                    task, doc_id, repeat = record["sample"]
                    seconds[task, doc_id, repeat] = seconds.get((task, doc_id, repeat), 0.0) + record["wall_s"]
            except (ValueError, TypeError, KeyError):
                damaged += 1
        if damaged:
            logger.warning(
                f"mai_cascade: {damaged} lines of the journal {self.path} are damaged; what they held is asked again."
            )
        return end

    def _tell_of_others(self, ours: Fingerprint, tasks: set[str]) -> None:
        """Say why a journal of the same tasks is not used: the newest."""
        others = [path for path in self.path.parent.glob("*.jsonl") if not path.name.startswith(self.digest)]
        for path in sorted(others, key=modified_time, reverse=True):
            head = head_of(path)
            shared = tasks & set(head.get("tasks", ()))
            if shared:
                differ = fingerprint.differences(head["fingerprint"], ours) or [
                    f"format: {head.get('format')} there, {FORMAT} here"
                ]
                logger.warning(
                    f"mai_cascade: an unfinished run of {', '.join(sorted(shared))} is not resumed: "
                    f"{'; '.join(differ)}. Delete {path} to forget it."
                )
                return
