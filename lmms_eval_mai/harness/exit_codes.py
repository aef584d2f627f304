"""How a run ends that cannot go on.

lmms-eval's command swallows every exception, prints its traceback and exits with 0 (its issue #542). There an error of
ours becomes a sentence and exit code 1, and so do results that it could not write; Ctrl-C is 130, SIGTERM 143 and
SIGHUP 129. In library use errors are ordinary exceptions.
"""

import contextlib
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from loguru import logger

from lmms_eval_mai.errors import MaiError

SIGNALS = {signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}


class Terminated(BaseException):
    """Raised in the main thread by one of `SIGNALS`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def told_to_user(hint: Callable[[], str] = str) -> Iterator[None]:
    """Around all that can fail. `hint`: what to do next, asked when the run has stopped; may be empty."""
    with _signals_raise():
        try:
            yield
        except KeyboardInterrupt:
            _print(f"mai_cascade: interrupted. {hint()}")
            if _in_lmms_evals_command():
                raise SystemExit(130) from None
            raise
        except Terminated as signalled:
            _print(f"mai_cascade: {SIGNALS[signal.Signals(signalled.number)]}. {hint()}")
            raise SystemExit(128 + signalled.number) from None
        except MaiError as error:
            if not _in_lmms_evals_command():
                if more := hint():
                    error.args = (f"{error}\n{more}",)
                raise
            _print(f"mai_cascade: {error} {hint()}")
            raise SystemExit(1) from None
        except Exception:
            if not _in_lmms_evals_command():
                raise
            traceback.print_exc()
            _print(f"mai_cascade: unexpected: please report it, with the lines above. {hint()}")
            raise SystemExit(1) from None


def ends_if_results_are_lost(hint: Callable[[], str]) -> None:
    """In lmms-eval's command: exit with 1 when it cannot write its results, of which it makes a warning and a 0
    (loggers/evaluation_tracker.py). The warning is all that is to be seen of it."""

    def end(message: Any) -> None:
        _print(f"mai_cascade: lmms-eval cannot write its results ({sys.exc_info()[1]}). {hint()}")
        raise SystemExit(1)

    if _in_lmms_evals_command():
        logger.add(end, level="WARNING", filter=_says_results_are_lost, catch=False)


def results_written() -> Callable[[], bool]:
    """Whether lmms-eval's command has written its results since now, where it was told to. In a library they are the
    caller's."""
    frame, since = _command(), time.time() - 1  # file systems round
    output = None if frame is None else getattr(frame.f_locals.get("args"), "output_path", None)
    if output is None:
        return lambda: True
    return lambda: any(file.stat().st_mtime >= since for file in Path(output).rglob("*_results.json"))


def _says_results_are_lost(record: Any) -> bool:
    return record["name"] == "lmms_eval.loggers.evaluation_tracker" and record["message"].startswith("Could not save")


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Only where nobody else listens: a handler of the user's own stays, and so does `nohup`."""
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in SIGNALS if main and signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _terminate)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


def _in_lmms_evals_command() -> bool:
    """Whether `lmms-eval` itself called us, for one configuration. With several in one `--config` file it goes on with
    the next after an error, and that must stay so."""
    frame = _command()
    return frame is not None and len(frame.f_locals.get("args_list", ())) <= 1


def _command() -> FrameType | None:
    """The frame of lmms-eval's command, if that is what called us."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "cli_evaluate" and code.co_filename.replace("\\", "/").endswith("lmms_eval/__main__.py"):
            return frame
        frame = frame.f_back
    return None


def _print(text: str) -> None:
    print(f"\n{text.strip()}", file=sys.stderr, flush=True)
