"""The call store: every finished call is on the disk before its answer is used.

A stopped run is resumed with it: the same command finds its calls here. `compare` keeps one store for all its runs.
They may share it, so that a greedy call that several runs need is made once. A single run also finds the greedy calls
of stopped runs with the same models and another method.

A store is one file of JSON lines, one line for each call and for each finished sample. A call is found by a digest of
everything that can change its answer: engine, checkpoint, arguments, prompt with the hashes of its images, decoding.
Each rank of a run writes a file of its own and reads those of all ranks.
"""

import asyncio
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from loguru import logger

from lmms_eval_mai.contract import CALL, Call, CallKey, Image, Prompt, Sampling, Side
from lmms_eval_mai.errors import StoreError
from lmms_eval_mai.user_input import make_writable, path_of

FORMAT = 2
"""Increase this number if older files cannot be read any more: it is a part of every digest and of a file's name."""

SampleKey = tuple[str, int, int]
"""Task, document, repeat."""


class _Line(NamedTuple):
    """Where a line is in an open file, and the run that wrote it. Its text stays on the disk."""

    file: int
    offset: int
    length: int
    run_name: str


def folder_of(store: str | None) -> Path | None:
    """Return the folder of the argument `store`; None for `off`. A file is made in it and removed now, because a run
    opens its store minutes later. Raises `ArgumentError` or `StoreError`."""
    if store == "off":
        return None
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = path_of(store or f"{cache}/lmms-eval-mai/store", "give another folder as store=FOLDER")
    with _write_errors(folder):
        make_writable(folder)
    return folder


def digest_of(*parts: Any) -> str:
    """Return a hash of JSON values, of 32 hexadecimal digits."""
    return hashlib.blake2b(
        json.dumps([FORMAT, *parts], sort_keys=True, default=str).encode(), digest_size=16
    ).hexdigest()


class Store:
    """The finished calls of a run. `find`, `add` and `add_sample` run on an event loop."""

    def __init__(
        self,
        path: Path,
        rank: int = 0,
        world_size: int = 1,
        others: Collection[Path] = (),
        shares_calls: bool = True,
    ) -> None:
        """Open or create the file. `path`: without its suffix. `others`: files of other runs. `shares_calls`: whether
        a run finds the greedy calls of other runs. Raises `StoreError` if the file cannot be written, or if another
        run writes it."""
        self.path = path.with_name(f"{path.name}-{rank}of{world_size}.jsonl")
        self.run_name = ""
        """The name of the run that makes the next calls."""
        self._shares_calls = shares_calls
        self.models: Mapping[Side, str] = {}
        """The digest of each engine's identity."""
        self._made: dict[tuple[str, CallKey, str], _Line] = {}
        """Calls of earlier processes, by run, key and digest."""
        self._shared: dict[str, _Line] = {}
        """The first call of each digest, of runs with names."""
        self._done: set[tuple[str, SampleKey]] = set()
        """Run and sample of each sample that earlier processes finished."""
        self._samples: set[SampleKey] = set()
        """All samples with a line in the files of all ranks."""
        self._files: list[int] = []
        with _write_errors(path), contextlib.ExitStack() as undo:
            self._file = _open_locked(self.path)
            undo.callback(os.close, self._file)
            self._end = self._read(self._file, self.path)
            os.ftruncate(self._file, self._end)  # a line that was torn by a crash
            ranks = self._other_ranks()
            for other in (*ranks, *(set(others) - {self.path, *ranks})):
                with contextlib.suppress(FileNotFoundError, BlockingIOError):
                    file = os.open(other, os.O_RDONLY)  # another run may have removed it
                    undo.callback(os.close, file)
                    self._files.append(file)
                    if other not in ranks:  # what runs now is not shared: its rest would have no times
                        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                        fcntl.flock(file, fcntl.LOCK_UN)
                    self._read(file, other, is_other_run=other not in ranks)
            undo.pop_all()
        self._unwritten = deque[bytes]()
        self._writer = ThreadPoolExecutor(1, "mai-store")
        self._error: StoreError | None = None
        """Why no more lines are written."""

    @property
    def earlier_calls(self) -> int:
        """The number of calls of this run that earlier processes have made."""
        return sum(run == self.run_name for run, _, _ in self._made)

    def done(self, samples: Collection[SampleKey]) -> set[SampleKey]:
        """Return those of these samples that earlier processes of this run finished."""
        return {sample for sample in samples if (self.run_name, sample) in self._done}

    async def find(self, prompt: Prompt, sampling: Sampling) -> Call | None:
        """Return the finished call of this request: of an earlier process of this run; else, if it is greedy, of
        another run, without times. None: there is none."""
        if not self._made and not self._shared:
            return None
        digest = self._digest(prompt, sampling)
        line = self._made.get((self.run_name, prompt.key, digest))
        if line is not None:
            return await asyncio.to_thread(_call_at, line, prompt.key)
        line = self._shared.get(digest) if self._shares_calls and sampling.temperature == 0 else None
        if line is None or line.run_name == self.run_name:
            return None
        call = await asyncio.to_thread(_call_at, line, prompt.key)
        return dataclasses.replace(call, shared=True, total_s=0.0, queued_s=None, ttft_s=None, started_at=None)

    async def add(self, prompt: Prompt, sampling: Sampling, call: Call) -> None:
        """Write a finished call. It is on the disk when this returns. Raises `StoreError`."""
        digest = self._digest(prompt, sampling)
        fields, key = CALL.dump_python(call, exclude={"key", "parsed", "logprobs"}), call.key
        names = (key.task, key.doc_id, key.repeat, key.side, key.prompt, key.of)
        line = await self._append({"key": names, "digest": digest, "call": fields})
        if line.run_name:
            self._shared.setdefault(digest, line)

    async def add_sample(self, sample: SampleKey) -> None:
        await self._append({"sample": sample})

    def close(self) -> None:
        """Wait until everything is on the disk, and close the files. A store without a line is removed."""
        if self._file < 0:
            return
        self._writer.shutdown()
        with contextlib.suppress(StoreError):
            self._write_lines()  # lines whose `_append` was cancelled
        self._error = StoreError(f"The call store {self.path} is closed.")
        if not self._end:
            self.path.unlink(missing_ok=True)
        for file in (self._file, *self._files):
            os.close(file)
        self._file, self._files = -1, []

    def remove(self, samples: Collection[SampleKey], all_ranks: bool) -> None:
        """Close the store and remove its file, unless it has other samples than these: those of a longer run that is
        not complete, for example after `--limit 100`. `all_ranks`: remove the files of all ranks, whatever they
        hold. A file that another run writes now stays: the same command may have been started again."""
        self.close()
        if all_ranks or self._samples <= set(samples):
            for path in [self.path, *self._other_ranks()]:
                with contextlib.suppress(StoreError), _write_errors(path):
                    file = _open_locked(path)
                    path.unlink()
                    os.close(file)

    def _digest(self, prompt: Prompt, sampling: Sampling) -> str:
        messages = [
            [message.role, *(["image", part.uuid] if isinstance(part, Image) else part for part in message.content)]
            for message in prompt.messages
        ]
        # What most calls do not have is left out of their digest, so that they are found in older files.
        more: list[Any] = [prompt.native, sampling.thinking_token_budget] if prompt.native else []
        more += [repr(sampling.repetition_detection)] if sampling.repetition_detection else []
        return digest_of(
            self.models[prompt.key.side], messages, repr(sampling), repr(prompt.attention), prompt.logprobs, *more
        )

    def _other_ranks(self) -> list[Path]:
        name = self.path.name.rpartition("-")[0]
        return sorted(path for path in self.path.parent.glob(f"{name}-*of*.jsonl") if path != self.path)

    def _read(self, file: int, path: Path, is_other_run: bool = False) -> int:
        """Read the lines of an open file. Returns the offset at which the last whole line ends. Lines that are damaged
        are left out, so their calls are made again."""
        end = damaged = 0
        with open(file, "rb", closefd=False) as lines:
            for text in lines:
                if not text.endswith(b"\n"):
                    break
                start, end = end, end + len(text)
                try:
                    record = json.loads(text)
                    run, names = record["run"], record.get("key") or record["sample"]
                    line = _Line(file, start, len(text), path.name if is_other_run else run)
                    if "key" in record and line.run_name:
                        self._shared.setdefault(record["digest"], line)
                    if is_other_run:
                        continue
                    if "key" in record:
                        self._made[run, CallKey(*names), record["digest"]] = line
                    else:
                        self._done.add((run, tuple(names)))
                    self._samples.add(tuple(names[:3]))
                except (ValueError, KeyError, TypeError):
                    damaged += 1
        if damaged:
            logger.warning(f"mai_cascade: {damaged} lines of {path} are damaged. Their calls are made again.")
        return end

    async def _append(self, record: dict[str, Any]) -> _Line:
        if self._error is not None:
            raise self._error
        data = json.dumps({"run": self.run_name, **record}).encode() + b"\n"
        line = _Line(self._file, self._end, len(data), self.run_name)
        self._end += len(data)  # the lines are written in the order of their offsets
        names = record.get("key") or record["sample"]
        self._samples.add(tuple(names[:3]))
        self._unwritten.append(data)
        await asyncio.get_running_loop().run_in_executor(self._writer, self._write_lines)
        return line

    def _write_lines(self) -> None:
        """Write all waiting lines with one fsync. If another call has written the line of this one, do nothing."""
        # A failed write may have left half a line, which the next one would continue.
        if self._error is None and (count := len(self._unwritten)):
            try:
                with _write_errors(self.path):
                    data = memoryview(b"".join(self._unwritten.popleft() for _ in range(count)))
                    while data:
                        data = data[os.write(self._file, data) :]
                    os.fsync(self._file)
            except StoreError as error:
                self._error = error
        if self._error is not None:
            raise self._error


def _call_at(line: _Line, key: CallKey) -> Call:
    return CALL.validate_python(json.loads(os.pread(line.file, line.length, line.offset))["call"] | {"key": key})


def _open_locked(path: Path) -> int:
    """Open a file and lock it until it is closed. The lock belongs to this descriptor, so it also keeps out a second
    run of the same process."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.stat(path), os.fstat(file)):
                return file
            os.close(file)  # another process has removed the file since it was opened here
        except BlockingIOError:
            os.close(file)
            raise StoreError(
                f"Another run with the same arguments is writing {path}. Wait until it ends, or give this run another "
                "folder with store=FOLDER, or no store with store=off."
            ) from None


@contextlib.contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"The call store {path} cannot be written ({error.strerror}). Free some space, or choose a writable folder "
            "with store=FOLDER. With store=off no call is kept, and a crash loses the run."
        ) from None
