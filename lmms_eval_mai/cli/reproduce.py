"""`lmms-eval-mai reproduce`: all runs of the paper's tables in one process, without making a call twice."""

import argparse
import os
from pathlib import Path

from lmms_eval_mai.cli.report import add_page_arguments, check_page_arguments, write_page
from lmms_eval_mai.cli.terminal import check_at_least_one, log_to_terminal, names_of, refuse, values_of
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reports import build
from lmms_eval_mai.reproduce import methods, plan, printing
from lmms_eval_mai.reproduce.folder import OutputFolder, common_arguments
from lmms_eval_mai.run.config import refuse_lmms_evals_own
from lmms_eval_mai.run.decoding import check_conflict

SET_HERE = {
    "mode": "the runs have all modes",
    "store": "the command keeps all finished calls in --output_path",
    "keep": "the engines always stay up between the runs",
    "verify": "MAI has the paper's rule, and min_confidence adds its run with verify=confidence",
}
"""Model arguments that the command sets itself, and why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", "--pair", metavar="PAIRS", help="named pairs, separated by commas")
    parser.add_argument("--benchmarks", metavar="NAMES", help="benchmarks of this package, separated by commas")
    parser.add_argument(
        "--tasks", metavar="TASKS", help="other tasks of lmms-eval with images and generated answers, e.g. mmstar,ai2d"
    )
    parser.add_argument("--tables", metavar="NUMBERS", help="tables of the paper (default: 5,6,7,8,10,15)")
    parser.add_argument("--limit", type=int, metavar="N", help="use the first N documents of each task (default: all)")
    parser.add_argument("--output_path", required=True, type=Path, metavar="FOLDER", help="the folder of all runs")
    parser.add_argument("--model_args", default="", help="more model arguments (format as in lmms-eval)")
    parser.add_argument("--gen_kwargs", default="", help="decoding arguments (format as in lmms-eval)")
    parser.add_argument("--include_path", help="a folder with more tasks, as in lmms-eval")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the runs and the equivalent lmms-eval commands, and run nothing"
    )
    parser.add_argument("--summary", action="store_true", help="print one row for each method instead of the tables")
    add_page_arguments(parser)


AFTER_INTERRUPT = "The same command continues."


def main(given: argparse.Namespace) -> None:
    """Make the runs, and print the tables. Raises a `MaiError`."""
    log_to_terminal()
    chosen = methods.read_tables(given.tables)
    benchmarks, others, pairs = (names_of(text) for text in (given.benchmarks, given.tasks, given.pairs))
    _check(given, [*benchmarks, *others])
    model_args, gen_kwargs = (values_of(f"--{name}", getattr(given, name)) for name in ("model_args", "gen_kwargs"))
    refuse_lmms_evals_own(model_args)
    refuse(model_args, SET_HERE)
    models = plan.read_models(pairs, model_args)
    for pair in models:
        check_conflict(gen_kwargs, pair.config)
    options = plan.Options(given.gen_kwargs, given.limit, given.include_path)
    folder = OutputFolder(given.output_path)
    common = common_arguments(models, model_args, gen_kwargs, options)
    folder.check(common)

    from lmms_eval_mai.reproduce import tasks  # these import lmms-eval, which takes seconds
    from lmms_eval_mai.reproduce.run_all import run_all

    log_to_terminal()  # lmms-eval removes all logs when it is imported
    tasks.hide_progress_bars()
    manager = tasks.task_manager(benchmarks, others, given.include_path)
    given_to_all = (manager, [pair.config for pair in models], gen_kwargs, given.limit)
    subjects = [tasks.subject(name, True, *given_to_all) for name in benchmarks]
    subjects += [tasks.subject(name, False, *given_to_all) for name in others]
    runs = plan.runs(models, subjects, chosen)
    if given.dry_run or not given.summary:
        print(printing.plan(runs, folder), flush=True)
    if given.dry_run:
        print(f"\nThe equivalent commands:\n\n{printing.commands(runs, options, folder)}")
        return
    folder.create(common)
    run_all(runs, manager, options, folder)
    evidence = build.evidence([given.output_path])
    report = build.of_evidence(evidence)
    if given.summary:
        print(f"\n{printing.summary(runs, folder, evidence)}", end="")
    else:
        print(f"\n{printing.chosen_tables(report, chosen)}")
        print(f"{printing.shared_calls(runs, folder)}\nAll tables: lmms-eval-mai report {given.output_path}")
    if given.html is not None:
        write_page(given.html, report, evidence, given.images)


def _check(given: argparse.Namespace, names: list[str]) -> None:
    if not names:
        raise ArgumentError("Give --benchmarks NAMES or --tasks TASKS.")
    check_at_least_one(given, "limit")
    check_page_arguments(given)
    if (ranks := int(os.environ.get("WORLD_SIZE") or 1)) > 1:
        raise ArgumentError(
            f"`lmms-eval-mai reproduce` runs in one process, and WORLD_SIZE is {ranks}. Start it without torchrun or "
            "accelerate; data_parallel_size gives a model several GPUs."
        )
