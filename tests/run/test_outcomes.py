"""The progress line of a run."""

import asyncio

import pytest

from lmms_eval_mai.contract import Call, CallKey
from lmms_eval_mai.method.sample import Trace
from lmms_eval_mai.run.outcomes import Failures, Progress, progress_bar


def test_progress_counts_the_finished_samples_and_is_a_line_in_a_log_file(capsys: pytest.CaptureFixture[str]) -> None:
    key = CallKey("pope_s", 7, 0, "large", "simple")
    call = Call("Yes", "stop", 9, 0, 2, None, None, 0.5, key=key)
    keys = [("pope_s", number, 0) for number in range(5000)]
    with progress_bar(5000, shown=True, done=2) as bar:
        progress = Progress(keys, Failures(), None, 0, bar, done=set(keys[:2]))
        bar.refresh()

        async def report_all() -> None:
            for index in range(5000):
                await progress.report(index, Trace("agree_short", call, (call,)))

        asyncio.run(report_all())
        bar.refresh()
    first, last = capsys.readouterr().err.splitlines()  # and not one per sample
    with progress_bar(3, shown=True) as bar:
        bar.update(3)
    assert capsys.readouterr().err == ""  # a short run writes nothing to a log
    assert first.startswith("mai_cascade: 2/5000, ") and last == "mai_cascade: 5000/5000, 00:00 left, agree_short=5000"
