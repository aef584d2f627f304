"""The command `lmms-eval-mai`, also `python -m lmms_eval_mai`.

The list of commands is here, and each command has a module of its name. It is imported only if the user gives that
command. `terminal.py` has what the commands share. This package may import all others, and no other package imports it.

To add a command, add it to `COMMANDS`, and write a module of the same name with `add_arguments`, which describes its
arguments, and `main`, which may return an exit code and may raise a `MaiError`. What takes seconds to import (torch,
pandas, lmms-eval) is imported in `main`, so that `--help` is quick. `AFTER_INTERRUPT` is a sentence that is added to
the message about Ctrl-C.
"""

import argparse
import difflib
import importlib
import re
import sys
from collections.abc import Sequence

import lmms_eval_mai
from lmms_eval_mai.cli.terminal import exit_code_of

COMMANDS = {
    "doctor": (
        "check the installation, and what an lmms-eval command would start",
        "Check the packages, the devices, and whether lmms-eval knows the model and the tasks. List the named pairs, "
        "and print the folder of the task files. Add an lmms-eval command, with all its arguments, to see which "
        "engines it would start on which devices, and whether its models and endpoints can be reached. Nothing is "
        "started or downloaded. With --gpus, only how the models share such GPUs is shown.",
    ),
    "ask": (
        "answer one question and print every call",
        "Answer one question, and print the prompt and the answer of every call to a model: a document of a task "
        "(--tasks TASK --doc N), which is also scored, or your own question (--question TEXT --image FILE). There is "
        "no call store, unless the model arguments name one.",
    ),
    "reproduce": (
        "make all runs of the paper's tables in one process",
        "Make the runs that the chosen tables of the paper need: the small and the large model alone with each "
        "prompt, Full RT and MAI. --paper qwen chooses all pairs, benchmarks and tables of the paper's Qwen3-VL "
        "models, and --paper internvl those of InternVL3.5. The engines of a pair start once, and no greedy call is "
        "made twice. Each run has the output folder of an lmms-eval command. At the end, the tables are printed. The "
        "same command after an interruption continues.",
    ),
    "report": (
        "make the paper's tables from finished runs",
        "Read the output folders of lmms-eval, and print the tables of the paper that their runs allow, tables that "
        "the paper lacks, and a sentence for each thing that is missing. Runs need --output_path and --log_samples. "
        "Nothing else is read, so the runs may be from another machine.",
    ),
    "calibrate": (
        "choose the threshold of verify=confidence by your own documents",
        "Read the output folders of a cascade, of Full RT and of large R on the same documents, as far as the choices "
        "need them (docs/confidence.md), and choose the cheapest threshold of verify=confidence whose expected loss on "
        "other documents of the same kind is at most --max_loss points, with the given confidence. Nothing is run. "
        "Prints the arguments to paste, and writes a file for min_confidence. Do not score the same documents with it.",
    ),
    "serve": (
        "answer chat requests over HTTP",
        "Start the engines and answer chat requests over HTTP, as OpenAI's API does (docs/serve.md). SIGTERM and "
        "Ctrl-C stop the server after the requests in flight are answered.",
    ),
}
"""Command -> its line in the help of `lmms-eval-mai`, and the description in its own help."""
EXIT_CODES = "The exit code is 1 after an error or a problem, 2 after a wrong option, and 130 after Ctrl-C."


def main(given: Sequence[str] | None = None) -> None:
    """Run the command with these arguments; None: those of the process."""
    given = sys.argv[1:] if given is None else given
    name = next((text for text in given if not text.startswith("-")), None)
    parser = argparse.ArgumentParser(prog="lmms-eval-mai")
    module = importlib.import_module(f"{__name__}.{name}") if name in COMMANDS else None
    parser.add_argument("--version", action="version", version=f"lmms-eval-mai {lmms_eval_mai.__version__}")
    commands = parser.add_subparsers(dest="command")
    for command, (line, description) in COMMANDS.items():
        # An option of lmms-eval such as --model must not be read as a short form of --model_args.
        own = commands.add_parser(command, help=line, description=description, epilog=EXIT_CODES, allow_abbrev=False)
        if command == name and module is not None:
            module.add_arguments(own)
    arguments, others = parser.parse_known_args(given)
    known = re.findall(r"--[\w-]+", commands.choices.get(arguments.command, parser).format_usage())
    for option in others:
        near = difflib.get_close_matches(option.partition("=")[0], known, n=1, cutoff=0.85)
        if near or name != "doctor":  # which takes a whole command of lmms-eval
            parser.error(f"{option} is unknown.{f' Did you mean {near[0]}?' if near else ''}")
    if module is None:
        parser.print_help()
    else:
        sys.exit(exit_code_of(lambda: module.main(arguments), getattr(module, "AFTER_INTERRUPT", "")))
