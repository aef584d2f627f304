"""Make the runs that the chosen tables of the paper need.

These are the small and the large model alone with each prompt, Full RT and MAI. --paper qwen chooses all pairs,
benchmarks and tables of the paper's Qwen3-VL models, and --paper internvl those of InternVL3.5. The engines of a pair
start once, and no greedy call is made twice. Each run has the output folder of an lmms-eval command. At the end, scores
and exits are printed; report.md and report.html have all tables. The same command after an interruption continues.
"""

import argparse
import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from lmms_eval_mai.analysis import paper_numbers
from lmms_eval_mai.analysis.reproduce.table_runs import DEFAULT, PAPERS, TABLES
from lmms_eval_mai.cli import log_to_terminal, log_warnings_only, names_of, tell
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.user_input import values_of

SET_HERE = {
    "method": "the runs have all methods, and --methods adds yours",
    "store": "the command keeps all finished calls in --output_path",
}
"""Model arguments that the command sets itself, and why."""
AFTER_INTERRUPT = "The same command continues."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--paper", choices=PAPERS, help="all pairs, benchmarks and tables of these models of the paper")
    parser.add_argument("--pairs", "--pair", metavar="PAIRS", help="named pairs, separated by commas")
    parser.add_argument("--benchmarks", metavar="NAMES", help="benchmarks of this package, separated by commas")
    parser.add_argument("--tables", metavar="NUMBERS", help="tables of the paper (default: 5,6,7,8,10,15)")
    parser.add_argument("--methods", nargs="+", default=[], metavar="FILE", help="methods of your own, as YAML files")
    parser.add_argument("--limit", type=int, metavar="N", help="use the first N documents of each task (default: all)")
    parser.add_argument("--output_path", required=True, type=Path, metavar="FOLDER", help="the folder of all runs")
    parser.add_argument("--model_args", default="", help="more model arguments (format as in lmms-eval)")
    parser.add_argument("--gen_kwargs", default="", help="decoding arguments (format as in lmms-eval)")
    parser.add_argument("--include_path", help="a folder with more tasks, as in lmms-eval")
    parser.add_argument("--dry-run", action="store_true", help="print the equivalent lmms-eval commands; run nothing")


def main(given: argparse.Namespace) -> None:
    from lmms_eval_mai.analysis.reproduce.plan import Options, plan, read_models
    from lmms_eval_mai.method import files
    from lmms_eval_mai.run.config import refuse_lmms_evals_own

    log_to_terminal()
    pairs, benchmarks = _chosen(given)
    model_args, gen_kwargs = (values_of(f"--{name}", getattr(given, name)) for name in ("model_args", "gen_kwargs"))
    refuse_lmms_evals_own(model_args)
    for name in SET_HERE.keys() & model_args.keys():
        raise ArgumentError(f"{name}={model_args[name]} has no effect here, because {SET_HERE[name]}. Leave it out.")
    user_methods = {file: files.load(file) for file in given.methods}
    runs = plan(read_models(pairs, model_args, list(user_methods.values())), benchmarks)
    names = {method.name: file for file, method in user_methods.items()}
    options = Options(given.gen_kwargs, given.limit, given.include_path, names)
    output: Path = given.output_path
    missing = [run for run in runs if not options.is_finished(run, output / run.name)]
    if given.dry_run:
        for run in runs:
            print(f"# {run.name}{', finished' * (run not in missing)}")
            print(shlex.join(["lmms-eval", *options.command(run, output / run.name, shown=True)]))
        print(f"# {len(runs)} runs")
        return
    if missing:
        from lmms_eval_mai.analysis.reproduce.run_all import load_tasks, run_all

        log_to_terminal()  # the import of lmms-eval has removed all logs
        manager = load_tasks(missing, options, gen_kwargs)
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArgumentError(f"--output_path {output} cannot be written ({error.strerror}).") from None
        run_all(missing, manager, options, output)
    _report(output)


def _report(folder: Path) -> None:
    from lmms_eval_mai.analysis.report import markdown, terminal
    from lmms_eval_mai.analysis.runs.runs import Runs
    from lmms_eval_mai.analysis.tables import build, page, thumbnails

    runs = Runs.read([folder])
    report = build.report(runs)
    print(f"\n{terminal(replace(report, tables=(report.table('methods'),), gaps=()))}")
    (folder / "report.md").write_text(markdown(report), encoding="utf-8")
    log_warnings_only()
    page.write(folder / "report.html", report, runs, thumbnails.load_images(runs, tell))
    print(f"All tables: {folder / 'report.md'}; the page with all samples: {folder / 'report.html'}")


def _chosen(given: argparse.Namespace) -> tuple[Mapping[str, tuple[int, ...]], list[str]]:
    """Return the tables of each pair, and the benchmarks. The pair "" is that of `--model_args`. Raises
    `ArgumentError`."""
    pairs, benchmarks = (names_of(text) for text in (given.pairs, given.benchmarks))
    if given.limit is not None and given.limit < 1:
        raise ArgumentError(f"--limit {given.limit} is invalid: expected at least 1.")
    if (ranks := int(os.environ.get("WORLD_SIZE") or 1)) > 1:
        raise ArgumentError(
            f"This command runs in one process, and WORLD_SIZE is {ranks}. Start it without torchrun or accelerate; "
            "data_parallel_size gives a model several GPUs."
        )
    if given.paper is not None:
        if pairs or given.tables is not None:
            raise ArgumentError("--paper chooses the pairs and the tables: leave --pairs and --tables out, or --paper.")
        return PAPERS[given.paper], benchmarks or [*paper_numbers.load()["benchmarks"]]
    if not benchmarks:
        raise ArgumentError("Give --paper qwen, --paper internvl, or --benchmarks NAMES.")
    tables = [*map(str, DEFAULT)] if given.tables is None else names_of(given.tables)
    if not tables or set(tables) - {*map(str, TABLES)}:
        raise ArgumentError(
            f"--tables {given.tables} is invalid: expected numbers from {', '.join(map(str, TABLES))}. "
            "docs/reproduce.md has the commands for the other tables."
        )
    return dict.fromkeys(pairs or [""], tuple(map(int, tables))), benchmarks
