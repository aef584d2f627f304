"""The writer of the journal: a cancelled line does not cancel others, and nothing is written after a failed write."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lmms_eval_mai.errors import JournalError
from lmms_eval_mai.reproduce.sharing import SharedCalls
from lmms_eval_mai.run.journal.journal import Journal
from lmms_eval_mai.run.journal.writer import JournalWriter


class SlowWriter(JournalWriter):
    """A writer whose writes wait until the test lets them go on. The first write may fail; the next ones work."""

    def __init__(self, path: Path, error: Exception | None = None) -> None:
        self.writing, self.go_on, self.error = threading.Event(), threading.Event(), error
        super().__init__(path, lambda record, line: None)

    def write(self, data: bytes) -> None:
        self.writing.set()
        self.go_on.wait(timeout=10)
        error, self.error = self.error, None
        if error is not None:
            raise error
        super().write(data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.mark.parametrize("error", [OSError(9, "Bad file descriptor"), RuntimeError("no more threads")], ids=str)
def test_a_line_that_waits_behind_a_failed_write_is_not_written_and_raises_the_error(
    path: Path, error: Exception
) -> None:
    async def append() -> list[object]:
        writer = SlowWriter(path, error)
        first = asyncio.ensure_future(writer.append(b"first\n"))
        assert await asyncio.to_thread(writer.writing.wait, 10)
        second = asyncio.ensure_future(writer.append(b"second\n"))
        await asyncio.sleep(0)
        writer.go_on.set()
        failed = await asyncio.gather(first, second, return_exceptions=True)
        failed += await asyncio.gather(writer.append(b"third\n"), return_exceptions=True)
        writer.close()
        return failed

    errors = asyncio.run(append())
    assert [type(error) for error in errors] == [JournalError] * 3 and str(error.args[-1]) in str(errors[0])
    assert path.read_text() == ""


def test_a_cancelled_line_cancels_no_other_line(path: Path) -> None:
    async def append() -> list[object]:
        writer = SlowWriter(path)
        lines = [asyncio.ensure_future(writer.append(line)) for line in (b"first\n", b"second\n", b"third\n")]
        await asyncio.sleep(0)
        lines[1].cancel()
        writer.go_on.set()
        found = await asyncio.gather(*lines, return_exceptions=True)
        writer.close()
        return found

    first, second, third = asyncio.run(append())
    assert first is third is None and isinstance(second, asyncio.CancelledError)
    assert {"first", "third"} <= set(path.read_text().split())


def test_lines_that_nobody_waits_for_are_on_the_disk_when_the_journal_is_closed(path: Path) -> None:
    writer = SlowWriter(path)

    async def leave() -> None:
        lines = [asyncio.ensure_future(writer.append(b"line\n")) for _ in range(3)]
        await asyncio.sleep(0)
        for line in lines:
            line.cancel()
        await asyncio.gather(*lines, return_exceptions=True)

    asyncio.run(leave())
    writer.go_on.set()
    writer.close()
    assert path.read_text() == "line\n" * 3
    with pytest.raises(JournalError, match="is closed"):
        asyncio.run(writer.append(b"late\n"))


@pytest.mark.parametrize(
    "open_in", [lambda folder: Journal(folder, {}, []), lambda folder: SharedCalls(folder / "calls.jsonl")]
)
def test_system_without_more_threads_is_a_journal_error_and_leaves_nothing_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_in: Callable[[Path], Journal | SharedCalls]
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch, pytest.raises(JournalError, match="can't start new thread"):
        patch.setattr(threading.Thread, "start", start)
        open_in(tmp_path)
    open_in(tmp_path).close()
