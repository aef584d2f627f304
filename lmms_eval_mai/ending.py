"""How a run ends that cannot go on.

lmms-eval's command swallows every exception, prints its traceback and exits with 0 (its issue #542). There an error of
ours becomes a sentence and exit code 1, Ctrl-C 130 and SIGTERM 143. In library use errors are ordinary exceptions.
"""

import contextlib
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType

from lmms_eval_mai.errors import MaiError


class Terminated(BaseException):
    """Raised in the main thread by SIGTERM."""


@contextlib.contextmanager
def told_to_user(hint: Callable[[], str] = str) -> Iterator[None]:
    """Around all that can fail. `hint`: what to do next, asked when the run has stopped; may be empty."""
    with _sigterm_raises():
        try:
            yield
        except KeyboardInterrupt:
            _print(f"mai_cascade: interrupted. {hint()}")
            if _in_lmms_evals_command():
                raise SystemExit(130) from None
            raise
        except Terminated:
            _print(f"mai_cascade: terminated. {hint()}")
            raise SystemExit(143) from None
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


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Only where nobody else listens: a handler of the user's own stays."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _in_lmms_evals_command() -> bool:
    """Whether `lmms-eval` itself called us, for one configuration. With several in one `--config` file it goes on with
    the next after an error, and that must stay so."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "cli_evaluate" and code.co_filename.replace("\\", "/").endswith("lmms_eval/__main__.py"):
            return len(frame.f_locals.get("args_list", ())) <= 1
        frame = frame.f_back
    return False


def _print(text: str) -> None:
    print(f"\n{text.strip()}", file=sys.stderr, flush=True)
