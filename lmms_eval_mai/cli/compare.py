"""Run several methods on the same tasks, and report which of them pays.

--tasks takes tasks of lmms-eval, also your own (--include_path). On each of them run the small model alone, the large
one with a short answer (large S) and with its own thinking (large R), Full RT and MAI; with a threshold also MAI by
confidence and own thinking. The engines of a pair start once. Each run makes its own calls, so each has its seconds,
unless --share_calls is given. --paper or --tables make the runs of the paper's tables instead; these share their calls.

At the end, the first tables of the report are printed; report.md and report.html have all, and are written to
--output_path, where each run has the folder of an lmms-eval command. The same command after an interruption continues.
"""

import argparse
import os
import shlex
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from loguru import logger

from lmms_eval_mai.analysis import paper_numbers
from lmms_eval_mai.analysis.compare.table_runs import DEFAULT, PAPERS, TABLES
from lmms_eval_mai.cli import log_to_terminal, log_warnings_only, names_of, tell
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.user_input import make_writable, values_of

SET_HERE = {
    "method": "--methods adds methods",
    "store": "the command keeps all finished calls in --output_path",
}
"""Model arguments that the command sets itself, and why."""
SHOWN = ("methods", "exits")
"""The tables that are printed. The files have all."""
AFTER_INTERRUPT = "The same command continues."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", "--pair", metavar="PAIRS", help="named pairs or YAML files, separated by commas")
    parser.add_argument("--tasks", metavar="NAMES", help="tasks of lmms-eval, separated by commas")
    parser.add_argument("--include_path", help="a folder with more tasks, as in lmms-eval")
    parser.add_argument("--limit", type=int, metavar="N", help="use the first N documents of each task (default: all)")
    parser.add_argument("--min_confidence", metavar="P", help="a threshold, or a file of calibrate: for confidence")
    parser.add_argument("--methods", nargs="+", default=[], metavar="METHOD", help="more methods: names, or YAML files")
    parser.add_argument("--output_path", required=True, type=Path, metavar="FOLDER", help="the folder of all runs")
    parser.add_argument("--share_calls", action="store_true", help="make no greedy call twice; runs have no seconds")
    parser.add_argument("--model_args", default="", help="more model arguments (format as in lmms-eval)")
    parser.add_argument("--gen_kwargs", default="", help="decoding arguments (format as in lmms-eval)")
    parser.add_argument("--paper", choices=PAPERS, help="all pairs, benchmarks and tables of these models of the paper")
    parser.add_argument("--benchmarks", metavar="NAMES", help="those of the paper's tables; without: its six")
    parser.add_argument("--tables", metavar="NUMBERS", help="tables of the paper; without: 5,6,7,8,10,15")
    parser.add_argument("--dry-run", action="store_true", help="print the equivalent lmms-eval commands; run nothing")


def main(given: argparse.Namespace) -> None:
    from lmms_eval_mai.analysis.compare.estimate import in_words
    from lmms_eval_mai.analysis.compare.plan import Options, plan, read_models
    from lmms_eval_mai.method import files
    from lmms_eval_mai.run.config import refuse_lmms_evals_own

    log_to_terminal()
    pairs, benchmarks = _chosen(given)
    threshold = "" if given.min_confidence is None else f"min_confidence={given.min_confidence}"
    model_args = values_of("--min_confidence", threshold) | values_of("--model_args", given.model_args)
    gen_kwargs = values_of("--gen_kwargs", given.gen_kwargs)
    refuse_lmms_evals_own(model_args)
    for name in SET_HERE.keys() & model_args.keys():
        raise ArgumentError(f"{name}={model_args[name]} has no effect here, because {SET_HERE[name]}. Leave it out.")
    methods = {name: files.load(name) for name in given.methods}
    runs = plan(read_models(pairs, model_args, list(methods.values())), names_of(given.tasks), benchmarks)
    names = {method.name: file for file, method in methods.items()}
    output, shares_calls = given.output_path, given.share_calls or bool(benchmarks)
    options = Options(given.gen_kwargs, given.limit, given.include_path, names, shares_calls)
    missing = [run for run in runs if not options.is_finished(run, output / run.name)]
    if given.dry_run:
        for run in runs:
            print(f"# {run.name}{', finished' * (run not in missing)}")
            print(shlex.join(["lmms-eval", *options.command(run, output / run.name, shown=True)]))
        print(f"# {in_words(runs, given.limit, shares_calls)}")
        return
    if len(missing) < len(runs):
        logger.info(f"{len(runs) - len(missing)} of {len(runs)} runs are finished.")
    if missing:
        if benchmarks:  # they may take days
            logger.info(f"To make: {in_words(missing, given.limit, shares_calls)}.")
        from lmms_eval_mai.analysis.compare.run_all import load_tasks, run_all

        log_to_terminal()  # the import of lmms-eval has removed all logs
        manager = load_tasks(missing, options, gen_kwargs)
        _check_writable(output)
        run_all(missing, manager, options, output, shares_calls)
    tables = {number for numbers in pairs.values() for number in numbers}
    _report(output, [*map(str, sorted(tables))])


def _check_writable(output: Path) -> None:
    try:
        make_writable(output)
    except OSError as error:
        raise ArgumentError(f"--output_path {output} cannot be written ({error.strerror}).") from None


def _report(folder: Path, tables: Collection[str]) -> None:
    from lmms_eval_mai.analysis.report import markdown, terminal
    from lmms_eval_mai.analysis.runs.runs import Runs
    from lmms_eval_mai.analysis.tables import build, page, thumbnails

    runs = Runs.read([folder])
    report = build.report(runs, tables)
    shown = tuple(replace(table, notes=()) for table in report.tables if table.key in SHOWN)
    print(terminal(replace(report, tables=shown, legend=())), end="")
    (folder / "report.md").write_text(markdown(report), encoding="utf-8")
    log_warnings_only()
    page.write(folder / "report.html", report, runs, thumbnails.load_images(runs, tell))
    print(f"All tables: {folder / 'report.md'}; the page with all samples: {folder / 'report.html'}")


def _chosen(given: argparse.Namespace) -> tuple[Mapping[str, tuple[int, ...]], list[str]]:
    """Return the tables of each pair, and their benchmarks. The pair "" is that of `--model_args`. Raises
    `ArgumentError`."""
    pairs, tasks, benchmarks = (names_of(text) for text in (given.pairs, given.tasks, given.benchmarks))
    if given.limit is not None and given.limit < 1:
        raise ArgumentError(f"--limit {given.limit} is invalid: expected at least 1.")
    if given.include_path is not None and not Path(given.include_path).is_dir():
        raise ArgumentError(f"--include_path {given.include_path} is not a folder.")
    if (ranks := int(os.environ.get("WORLD_SIZE") or 1)) > 1:
        raise ArgumentError(
            f"This command runs in one process, and WORLD_SIZE is {ranks}. Start it without torchrun or accelerate; "
            "data_parallel_size gives a model several GPUs."
        )
    if given.paper is not None:
        if pairs or tasks or given.tables is not None:
            raise ArgumentError("--paper chooses the pairs and the tables: leave --pairs, --tasks and --tables out.")
        return PAPERS[given.paper], benchmarks or [*paper_numbers.load()["benchmarks"]]
    if tasks:
        if benchmarks or given.tables is not None:
            raise ArgumentError("--tables are about --benchmarks, in place of --tasks: give one of the two.")
        return dict.fromkeys(pairs or [""], ()), []
    if not benchmarks and given.tables is None:
        raise ArgumentError("Give --tasks NAMES; for the paper's tables --paper qwen, or --tables NUMBERS.")
    tables = [*map(str, DEFAULT)] if given.tables is None else names_of(given.tables)
    if not tables or set(tables) - {*map(str, TABLES)}:
        raise ArgumentError(
            f"--tables {given.tables} is invalid: expected numbers from {', '.join(map(str, TABLES))}. "
            "docs/reproduce.md has the commands for the other tables."
        )
    return dict.fromkeys(pairs or [""], tuple(map(int, tables))), benchmarks or [*paper_numbers.load()["benchmarks"]]
