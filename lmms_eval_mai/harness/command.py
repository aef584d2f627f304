"""The running lmms-eval command: its messages and exit codes.

lmms-eval's command prints the traceback of any exception and exits with 0 (issue #542). With this model, an error
prints one message and exits with 1, and Ctrl-C exits with 130. With several configurations in one `--config` file,
lmms-eval continues with the next one after an error. So errors and Ctrl-C are raised there, as in library use. SIGTERM
(143) and SIGHUP (129) always end the process.
"""

import argparse
import contextlib
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import yaml

from lmms_eval_mai.errors import MaiError

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class SignalReceived(BaseException):
    """A signal arrived. Raised in the main thread with the number of the signal."""


def configurations() -> int:
    """Return the number of configurations of the running `lmms-eval` command; 0 if another program runs.

    Launchers such as `torchrun` and `accelerate launch` start `python -m lmms_eval` in each rank.
    """
    main = sys.modules["__main__"]
    if getattr(main, "__package__", None) != "lmms_eval" and Path(sys.argv[0]).name != "lmms-eval":
        return 0
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config", type=Path)
    file = parser.parse_known_args(sys.argv[1:])[0].config
    commands = None if file is None else yaml.safe_load(file.read_bytes())
    return len(commands) if isinstance(commands, list) else 1


@contextlib.contextmanager
def report_errors_to_user(hint: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turn errors and signals inside the block into messages and exit codes. `hint` returns what to do next, or an
    empty text; it is called after the error."""
    with signals_raise(*SIGNALS):
        try:
            yield
        except (Exception, KeyboardInterrupt, SignalReceived) as error:
            _report(error, hint())
            raise


def _report(error: BaseException, hint: str) -> None:
    text, code = f"{error}\n", 1  # it may end with lines of a log
    if isinstance(error, KeyboardInterrupt):
        text, code = "stopped by Ctrl-C. ", 130
    elif isinstance(error, SignalReceived):
        text, code = f"received {signal.Signals(error.args[0]).name}. ", 128 + error.args[0]
    ends = isinstance(error, SignalReceived) or configurations() == 1
    if ends and not isinstance(error, MaiError) and code == 1:
        traceback.print_exception(error)
        text = "unexpected error. Please report it with the lines above. "
    if ends or code == 130:
        print(f"\nmai_cascade: {text}{hint}".rstrip(), file=sys.stderr, flush=True)
    elif isinstance(error, MaiError) and hint:
        error.args = (f"{error}\n{hint}",)
    if ends:
        raise SystemExit(code) from None


@contextlib.contextmanager
def signals_raise(*signals: int) -> Iterator[None]:
    """Raise `SignalReceived` if one of these signals arrives inside the block. A second one is ignored, so that engines
    can be stopped. A handler that the user or `nohup` has set stays."""
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in signals if main and signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _raise_signal_received)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _raise_signal_received(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise SignalReceived(number)
