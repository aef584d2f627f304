"""The command `lmms-eval-mai`, also `python -m lmms_eval_mai`.

Each command in `COMMANDS` has a module of its name, which is imported only for that command. Its docstring is shown by
`--help`; `add_arguments` describes its arguments; `main` may return an exit code and may raise a `MaiError`. What takes
seconds to import (torch, pandas, lmms-eval) is imported in `main`, so that `--help` is quick. `AFTER_INTERRUPT` is a
sentence that is added to the message about Ctrl-C.
"""

import argparse
import difflib
import errno
import importlib
import os
import re
import signal
import sys
from collections.abc import Sequence
from types import ModuleType

from loguru import logger

import lmms_eval_mai
from lmms_eval_mai.errors import MaiError

COMMANDS = {
    "doctor": "show what an lmms-eval command would start, and what is in its way",
    "ask": "answer one question and print every call",
    "compare": "run several methods on your task, and report which of them pays",
    "report": "compare finished runs, with the paper's tables on request",
    "calibrate": "choose the threshold of a method by your own documents",
    "serve": "answer chat requests over HTTP",
}
"""Command -> its line in the help of `lmms-eval-mai`."""
SLOW = ("ask", "compare", "serve")
"""Commands that import for 5 to 20 s before they have something to say."""
GONE = {
    "calibrate --labels": "give runs with scores, or --loss answers, which needs no gold answers.",
    "calibrate --to_label": "give runs with scores, or --loss answers, which needs no gold answers.",
    "calibrate --looks": "for N looks, give --confidence 1 - (1 - P)/N at each, such as 0.975 for two looks at 95%.",
    "report --tables rules": "--method NAME --min_confidence 0.9 0.8 makes a row for each threshold.",
}
"""Command and option (or its value) of an earlier version -> what to do instead. It goes with the next release."""
EXIT_CODES = "The exit code is 1 after an error or a problem, 2 after a wrong option, and 130 after Ctrl-C."


def main(given: Sequence[str] | None = None) -> None:
    """Run the command with these arguments; None: those of the process."""
    given = sys.argv[1:] if given is None else given
    name = next((text for text in given if not text.startswith("-")), "")
    parser = argparse.ArgumentParser(prog="lmms-eval-mai")
    module = importlib.import_module(f"{__name__}.{name}") if name in COMMANDS else None
    parser.add_argument("--version", action="version", version=f"lmms-eval-mai {lmms_eval_mai.__version__}")
    commands = parser.add_subparsers(dest="command")
    for command, line in COMMANDS.items():
        description = module.__doc__ if command == name else None
        # An option of lmms-eval such as --model must not be read as a short form of --model_args.
        commands.add_parser(command, help=line, description=description, epilog=EXIT_CODES, allow_abbrev=False)
    if module is not None:
        module.add_arguments(commands.choices[name])
    arguments, others = parser.parse_known_args(given)
    known = re.findall(r"--[\w-]+", commands.choices.get(arguments.command, parser).format_usage())
    for option in others:
        if instead := GONE.get(f"{name} {option.partition('=')[0]}"):
            parser.error(f"{option} has gone: {instead}")
        near = difflib.get_close_matches(option.partition("=")[0], known, n=1, cutoff=0.85)
        if near or name != "doctor":  # which takes a whole command of lmms-eval
            parser.error(f"{option} is unknown.{f' Did you mean {near[0]}?' if near else ''}")
    if name in SLOW:
        print("loading lmms-eval and the engines ...", file=sys.stderr, flush=True)
    if module is None:
        parser.print_help()
    else:
        sys.exit(_exit_code(module, arguments))


def _exit_code(module: ModuleType, arguments: argparse.Namespace) -> int:
    try:
        code: int = module.main(arguments) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `report | head`
        _write_nothing_more()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        tell(f"{error.filename or 'the output'} cannot be written ({error.strerror}).")
        _write_nothing_more()
        return 1
    except MaiError as error:
        tell(str(error))
        return 1
    except KeyboardInterrupt:
        tell(f"stopped by Ctrl-C. {getattr(module, 'AFTER_INTERRUPT', '')}".rstrip())
        return 130


def _write_nothing_more() -> None:
    """Send what standard output still holds to nowhere: Python writes it when it exits, and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# --- what the commands share ------------------------------------------------------------------------------


def tell(text: str) -> None:
    """Print a message to standard error."""
    print(f"lmms-eval-mai: {text}", file=sys.stderr, flush=True)


def log_to_terminal() -> None:
    """Show warnings, and the information of this package, on the terminal."""
    logger.remove()
    logger.add(sys.stderr, format="{message}", filter={"": "WARNING", "lmms_eval_mai": "INFO"})


def log_warnings_only() -> None:
    logger.remove()
    logger.add(sys.stderr, level="WARNING", format="{message}")


def names_of(text: str | None) -> list[str]:
    """Return the names in a text with commas, each once."""
    return list(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
