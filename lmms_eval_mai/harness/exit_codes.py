"""Exit codes and messages of a run that must stop.

lmms-eval's command catches every exception, prints its traceback and exits with 0 (lmms-eval issue #542). Under the
command with one configuration, an error of this package prints one message and exits with 1. If lmms-eval cannot write
its results, the command also exits with 1. Ctrl-C exits with 130. With several configurations, and in library use,
errors and Ctrl-C are raised as usual. SIGTERM (143) and SIGHUP (129) always end the process.
"""

import contextlib
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from loguru import logger

from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.harness.running_command import configurations
from lmms_eval_mai.run.journal.removal import keep

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class SignalReceived(BaseException):
    """Raised in the main thread when one of `SIGNALS` arrives."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def report_errors_to_user(hint: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turn errors and signals inside the block into messages and exit codes.

    `hint` returns what to do next, or an empty text; it is called when the run has stopped.
    """
    with _signals_raise():
        try:
            yield
        except KeyboardInterrupt:
            _print(f"mai_cascade: stopped by Ctrl-C. {hint()}")
            if _exits_with_error():
                raise SystemExit(130) from None
            raise
        except SignalReceived as received:
            _print(f"mai_cascade: received {signal.Signals(received.number).name}. {hint()}")
            raise SystemExit(128 + received.number) from None
        except MaiError as error:
            if not _exits_with_error():
                if more := hint():
                    error.args = (f"{error}\n{more}",)
                raise
            _print(f"mai_cascade: {error}\n{hint()}")  # the error may end with lines of a log
            raise SystemExit(1) from None
        except Exception:
            if not _exits_with_error():
                raise
            traceback.print_exc()
            _print(f"mai_cascade: unexpected error. Please report it with the lines above. {hint()}")
            raise SystemExit(1) from None


def watch_for_unsaved_results() -> None:
    """Under lmms-eval's command, exit with 1 and keep all journals if it cannot write its results.

    lmms-eval only logs a warning and exits with 0 (loggers/evaluation_tracker.py), so a log sink waits for that
    warning.
    """

    def exit_with_error(message: Any) -> None:
        paths = ", ".join(map(str, keep()))
        hint = f"All answers are still in {paths}: the same command with another --output_path scores them."
        _print(
            f"mai_cascade: lmms-eval cannot write its results ({sys.exc_info()[1]}). Check --output_path and the free "
            f"disk space. {hint if paths else ''}"
        )
        raise SystemExit(1)

    if _exits_with_error():
        logger.add(exit_with_error, level="WARNING", filter=_results_not_saved, catch=False)


def _results_not_saved(record: Any) -> bool:
    name, message = str(record["name"]), str(record["message"])
    return name == "lmms_eval.loggers.evaluation_tracker" and message.startswith("Could not save")


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Raise `SignalReceived` inside the block. A handler that the user or `nohup` has set stays."""
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in SIGNALS if main and signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _raise_signal_received)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _raise_signal_received(number: int, frame: FrameType | None) -> None:
    raise SignalReceived(number)


def _exits_with_error() -> bool:
    """Return whether an error must end the process: under lmms-eval's command with one configuration. With several
    configurations in one `--config` file, lmms-eval continues with the next one after an error."""
    return configurations() == 1


def _print(text: str) -> None:
    print(f"\n{text.strip()}", file=sys.stderr, flush=True)
