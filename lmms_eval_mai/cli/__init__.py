"""The command `lmms-eval-mai`, also `python -m lmms_eval_mai`: lists pairs and task files, checks a set-up, answers one
question, analyses attention, makes the runs of the paper's tables, reports on finished runs, measures times, and
serves the cascade over HTTP.

The parser and the short commands are here. `doctor.py` calls the checks of `doctor`: `command_line.py` checks the
arguments, `tasks.py` the model, the tasks and their data sets, `hub.py` the Hugging Face hub, and `machine.py` the
devices. `findings.py` prints the report. `gpu_report.py` shows the plan of the GPU memory, for this and for other
machines. `ask.py` is the command `ask`, and `document.py` opens and scores its document. `attention.py` is the command
`attention`, `task_documents.py` opens and scores its documents, and `finished_run.py` reads the record of a run.
`reproduce.py` is the command `reproduce`, `report.py` is `report`, `profile_model.py` is `profile`, `estimate.py` is
`estimate`, `bench.py` is `bench`, and `serve.py` is `serve`. `exit_code.py` turns the errors of these commands into
exit codes.

This package may import all others, and no other package imports it.

To add a command, put its work into a module of its own, add the module to `MODULES`, and a parser to `_parser`.
"""

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence

import lmms_eval_mai
from lmms_eval_mai.cli import ask, attention, bench, estimate, profile_model, report, reproduce, serve
from lmms_eval_mai.plugin import task_dir
from lmms_eval_mai.run import presets

MODULES = {
    "ask": ask,
    "attention": attention,
    "reproduce": reproduce,
    "report": report,
    "profile": profile_model,
    "estimate": estimate,
    "bench": bench,
    "serve": serve,
}
"""Command -> its module, which has `add_arguments` and `main`."""
WIDTH = 110
"""Columns of a printed text."""


def main(given: Sequence[str] | None = None) -> None:
    """Run the command with these arguments; None: those of the process."""
    parser = _parser()
    given = sys.argv[1:] if given is None else given
    arguments, others = parser.parse_known_args(given)
    if arguments.command == "doctor":  # it takes a whole lmms-eval command
        sys.exit(_doctor(_without_gpus(given[1:]), arguments.gpus))
    if others:
        parser.error(f"unknown arguments: {' '.join(others)}")
    if arguments.command is None:
        parser.print_help()
    elif arguments.command in MODULES:
        sys.exit(MODULES[arguments.command].main(arguments))
    elif arguments.command == "task-dir":
        print(task_dir())
    else:
        _print_pairs()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lmms-eval-mai")
    parser.add_argument("--version", action="version", version=f"lmms-eval-mai {lmms_eval_mai.__version__}")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("pairs", help="list the named pairs", description="List the named pairs.")
    commands.add_parser(
        "task-dir",
        help="print the folder of the task files",
        description="Print the folder of the task files, for lmms-eval's --include-path.",
    )
    doctor = commands.add_parser(
        "doctor",
        allow_abbrev=False,  # --model must not be read as a short form of --model_args
        help="check the installation, and what an lmms-eval command would start",
        description="Check the packages, the devices and the tasks. Add an lmms-eval command, with all its arguments, "
        "to check its options, models, tasks and data sets too, and to see which engines it would start on which "
        "devices. Nothing is started, and no data set is downloaded. This takes up to half a minute. The exit code is "
        "1 if there is a problem. With --gpus, only how the models share such GPUs is shown. This needs "
        "no GPU, and for the models of the named pairs no download.",
    )
    doctor.add_argument("--model", help="the model; with --model and without --model_args, the defaults are checked")
    doctor.add_argument("--model_args", help="check these model arguments (format as in lmms-eval)")
    doctor.add_argument("--tasks", help="check that these tasks exist and that their data sets can be loaded")
    doctor.add_argument("--gen_kwargs", help="check these decoding arguments (format as in lmms-eval)")
    doctor.add_argument("--include_path", help="a folder with more tasks, as in lmms-eval")
    doctor.add_argument(
        "--gpus",
        default=None,
        metavar="GPUS",
        help="show how the models of the command (default: the default pair) would share the memory of other GPUs: "
        "a name (L4, 8xH100), a size (2x48GiB), the memory that nvidia-smi shows (23034MiB), or different GPUs "
        "(L4+L40S). The exit code is 1 if the models do not fit, or if the size of one is unknown",
    )
    ask.add_arguments(
        commands.add_parser(
            "ask",
            allow_abbrev=False,
            help="answer one question and print every call",
            description="Answer one question, and print the prompt and the answer of every call to a model: a document "
            "of a task (--tasks TASK --doc N), which is also scored, or your own question (--question TEXT --image "
            "FILE). There is no journal, unless the model arguments name one. The exit code is 1 after an error.",
        )
    )
    attention.add_arguments(
        commands.add_parser(
            "attention",
            allow_abbrev=False,
            help="analyse which tokens of a thinking the large model reads",
            description="Measure how the large model's attention is distributed over the thinking of both models "
            "(Figures 3 to 5 and Table 16 of the paper), and compare sparse transfer by layer with full transfer and "
            "with two controls (Table 9). Figures are written as SVG and PNG, numbers as Parquet. The same command "
            "after an interruption continues. The exit code is 1 after an error.",
        )
    )
    reproduce.add_arguments(
        commands.add_parser(
            "reproduce",
            allow_abbrev=False,
            help="make all runs of the paper's tables in one process",
            description="Make the runs that the chosen tables of the paper need: the small and the large model alone "
            "with each prompt, Full RT and MAI. The engines of a pair start once, and a greedy call that an earlier "
            "run made is not made again. Each run has the output folder of an lmms-eval command. At the end, the "
            "tables are printed. The same command after an interruption continues. The exit code is 1 after an error.",
        )
    )
    report.add_arguments(
        commands.add_parser(
            "report",
            allow_abbrev=False,
            help="make the paper's tables from finished runs",
            description="Read the output folders of lmms-eval, and print the tables of the paper that their runs "
            "allow, tables that the paper lacks, and a sentence for each thing that is missing. Runs need "
            "--output_path and --log_samples. Nothing else is read, so the runs may be from another machine. The exit "
            "code is 1 if there is no run.",
        )
    )
    profile_model.add_arguments(
        commands.add_parser(
            "profile",
            allow_abbrev=False,
            help="measure the times of a model on this machine",
            description="Measure a model on this machine with synthetic images: preprocessing, vision encoder, time to "
            "first token and decoding (Tables 1 to 4 of the paper), and with vLLM also batches. Writes "
            "profile-MODEL-DEVICE.json for the command estimate, and prints the tables beside the paper's. For a pair, "
            "the models are compared, with the crossing of Figure 1 (a). With vLLM, --model_args load_format=dummy "
            "needs no weights. The exit code is 1 after an error.",
        )
    )
    estimate.add_arguments(
        commands.add_parser(
            "estimate",
            allow_abbrev=False,
            help="estimate the time of finished runs from measured profiles",
            description="Read the output folders of lmms-eval, and estimate how long the calls of their runs take one "
            "after another on the device of a profile: by Eq. 27 of the paper (Table 11), and without its double time "
            "to the first token. With profiles that have batch sizes, the time in full batches is estimated too. Runs "
            "need --output_path and --log_samples. The exit code is 1 after an error.",
        )
    )
    bench.add_arguments(
        commands.add_parser(
            "bench",
            allow_abbrev=False,
            help="measure the time of the methods on this machine",
            description="Start the models of a pair and measure MAI, Full RT, each model alone, speculative decoding "
            "and lmms-eval's own vllm model on the same documents (Table 12, and more): rows interleaved over all "
            "repeats, medians, and ratios with their intervals. A row that fails gets no further runs. The last line "
            "is JSON. The exit code is 1 after an error.",
        )
    )
    serve.add_arguments(
        commands.add_parser(
            "serve",
            allow_abbrev=False,
            help="answer chat requests over HTTP",
            description="Start the engines and answer chat requests over HTTP, as OpenAI's API does "
            "(docs/serve.md). SIGTERM and Ctrl-C stop the server after the requests in flight are answered. The exit "
            "code is 1 after an error, 130 after Ctrl-C, and 143 after SIGTERM while the engines start.",
        )
    )
    return parser


def _without_gpus(given: Sequence[str]) -> list[str]:
    """Return the arguments of lmms-eval among those of `doctor`."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--gpus")
    return parser.parse_known_args(given)[1]


def _doctor(command: Sequence[str], gpus: str | None) -> int:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # the report should fit one screen
    from loguru import logger

    from lmms_eval_mai.cli import command_line, gpu_report, hub
    from lmms_eval_mai.cli.findings import report

    logger.remove()
    logger.add(sys.stderr, level="WARNING", format="{message}")
    given = command_line.read(command)
    if gpus is not None:
        config, finding = command_line.check_arguments(given.model_args or "")
        problems = [one for one in [finding, *command_line.check_for_plan(given)] if one.mark == "PROBLEM"]
        return gpu_report.report(gpus, config) if config is not None and not problems else report(problems)
    answer = hub.connect()  # before the imports that read HF_HUB_OFFLINE
    from lmms_eval_mai.cli.doctor import examine

    return report(examine(given, answer))


def _print_pairs() -> None:
    """Print each pair on one line, and below it the paper's use of it."""
    width = max(map(len, presets.names()))
    for name in presets.names():
        default = " (default)" if name == presets.DEFAULT else ""
        print(f"{name:<{width}}  {' + '.join(presets.models(name))}{default}")
        indent = " " * (width + 2)
        print(textwrap.fill(presets.description(name), WIDTH, initial_indent=indent, subsequent_indent=indent))
