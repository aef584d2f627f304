"""`lmms-eval-mai bench`: the measured times of methods on one pair of models (Table 12, and more)."""

import argparse
import asyncio
import functools
import json
import os
import statistics
import sys
from typing import TYPE_CHECKING, Any

from lmms_eval_mai.cli.ask import log_to_terminal
from lmms_eval_mai.cli.bench_documents import MEGAPIXELS, source_of
from lmms_eval_mai.cli.exit_code import exit_code_of
from lmms_eval_mai.errors import ArgumentError

if TYPE_CHECKING:
    from lmms_eval_mai.bench.documents import Documents
    from lmms_eval_mai.bench.measure import Bench, Result
    from lmms_eval_mai.run.config import Config

SET_HERE = {
    "pair": "--pair names the pair",
    "mode": "--rows chooses the methods",
    "transfer": "all rows transfer the whole thinking",
}
"""Model arguments that the command sets itself, and why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--pair", required=True, metavar="PAIR", help="a named pair, or the path of a YAML file")
    parser.add_argument("--model_args", default="", help="more model arguments (format as in lmms-eval)")
    parser.add_argument("--task", metavar="TASK", help="the documents of this task; default: drawn bar charts")
    parser.add_argument("--include_path", metavar="DIR", help="a folder with more tasks, as in lmms-eval")
    parser.add_argument("--megapixels", type=float, metavar="M", help=f"size of a drawn chart; default: {MEGAPIXELS}")
    parser.add_argument(
        "--lengths",
        default="own",
        metavar="LENGTHS",
        help="own (default): the models end their answers. paper:BENCHMARK: output lengths and exits are forced to the "
        "paper's figures of pope, mmbench_en_dev, mmmu_val, chartqa, infovqa_val or realworldqa",
    )
    parser.add_argument("--rows", metavar="ROW,ROW", help="default: all that the lengths allow; docs/latency.md")
    parser.add_argument(
        "--concurrency", default="1,32,max", metavar="N,N", help="documents open at once; default: 1,32,max"
    )
    parser.add_argument("--samples", type=int, default=100, metavar="N", help="documents; default: 100")
    parser.add_argument(
        "--single_samples", type=int, default=25, metavar="N", help="documents answered one at a time; default: 25"
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each row; default: 3")
    parser.add_argument(
        "--max_new_tokens",
        type=int,
        metavar="N",
        help="limit of each answer if lengths are not forced, and always in the rows lmms-eval-...",
    )
    parser.add_argument(
        "--assistant_tokens", type=int, default=5, metavar="N", help="row hf-speculative: drafted tokens; default: 5"
    )


def main(given: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    log_to_terminal()
    return exit_code_of(lambda: _run(given), after_interrupt="A table has the finished runs, if there are any.")


def _run(given: argparse.Namespace) -> None:
    """Measure all rows and print them. Raises a `MaiError`."""
    from lmms_eval_mai.bench import table
    from lmms_eval_mai.bench.engines import Engines, engine_of
    from lmms_eval_mai.bench.measure import Measurement
    from lmms_eval_mai.bench.rows import ROWS

    bench = _bench(given)
    build = functools.partial(engine_of, arguments=bench.arguments, assistant_tokens=bench.assistant_tokens)
    engines = Engines(build, one_row=_has_gpu())
    for name in dict.fromkeys(name for row, _ in bench.cells for name in ROWS[row].engines):
        build(name).validate()  # before the first start
    measurement = Measurement(bench, engines, _tell)
    try:
        asyncio.run(measurement.run())
    finally:  # also after Ctrl-C
        result = measurement.result()
        if result.runs:
            _print(result)
            settings = settings_of(given) | {"single": bench.single.facts(), "many": bench.many.facts()}
            print(json.dumps(table.figures(result, settings, _machine())), flush=True)
    if not result.runs:
        raise ArgumentError("No row could run. The reasons are above.")


def _bench(given: argparse.Namespace) -> "Bench":
    """Return what is measured, after all checks that need no engine. Raises a `MaiError`."""
    from lmms_eval_mai.bench import rows
    from lmms_eval_mai.bench.lengths import benchmark_of, make_plan
    from lmms_eval_mai.cli.command_line import values_of
    from lmms_eval_mai.run.config import parse

    for name in ("samples", "single_samples", "repeats", "assistant_tokens"):
        if getattr(given, name) < 1:
            raise ArgumentError(f"--{name} {getattr(given, name)} is invalid: expected at least 1.")
    benchmark = benchmark_of(given.lengths)
    names = rows.chosen(given.rows, benchmark is not None)
    cells = rows.cells(names, rows.levels(given.concurrency), as_given=given.rows is not None)
    arguments = values_of("--model_args", given.model_args)
    for name, reason in SET_HERE.items():
        if name in arguments:
            raise ArgumentError(f"{name}={arguments[name]} has no effect here, because {reason}. Leave it out.")
    arguments["pair"] = given.pair
    if given.max_new_tokens is not None:
        arguments["max_new_tokens"] = given.max_new_tokens
    config = parse(arguments)
    if "vllm-ngram" in names and "speculative_config" in config.large.arguments:
        raise ArgumentError(
            "The row vllm-ngram gives the large model a speculative_config of its own: leave yours out, or name the "
            "other rows with --rows."
        )
    source = source_of(given, benchmark is not None)

    def documents(count: int) -> "Documents":
        from lmms_eval_mai.bench.documents import Documents

        number = min(count, source.count())
        return Documents(source, number, None if benchmark is None else make_plan(benchmark, number), arguments)

    from lmms_eval_mai.bench.measure import Bench

    many = documents(given.samples)
    return Bench(
        cells=tuple(cells),
        single=documents(given.single_samples),
        many=many,
        arguments=arguments,
        assistant_tokens=given.assistant_tokens,
        max_new_tokens=_limit(given, many, config),
        repeats=given.repeats,
    )


def _limit(given: argparse.Namespace, documents: "Documents", config: "Config") -> int:
    """Return the limit of an answer in lmms-eval's whole process: the mean of the forced lengths, if there are any."""
    from lmms_eval_mai.paper.prompts import MAX_TOKENS

    if given.max_new_tokens is not None or documents.plan is None:
        return int(given.max_new_tokens or config.max_new_tokens or MAX_TOKENS)
    steps = documents.plan.steps.items()
    return round(
        statistics.fmean(step.tokens for (_, side, stage), step in steps if (side, stage) == ("large", "think"))
    )


def _print(result: "Result") -> None:
    from lmms_eval_mai.bench import table

    all_lines = table.lines(result)
    print("\nMedians of interleaved runs. Each row is compared with its reference at the same level.")
    if not result.complete:
        print("The measurement was stopped, so some rows have fewer runs than others, or none.")
    print()
    print(table.table(all_lines))
    print('"With starts" includes the starts of the engines, and the stops of rows that run in processes of their own.')
    for name, ratio in table.ratios(all_lines).items():
        print(f"{name}: {ratio:.2f}")
    measured = {run.row for run in result.runs}
    for name, reason in result.failed.items():
        state = "has only the runs before its error" if name in measured else "has no runs"
        print(f"{name} {state}: {reason}")


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    """Return the options for the line of JSON, without secrets."""
    from lmms_eval_mai.cli.command_line import values_of
    from lmms_eval_mai.redaction import redacted, without_password

    names = ("pair", "task", "megapixels", "lengths", "samples", "single_samples", "repeats", "max_new_tokens")
    found: dict[str, Any] = {name: getattr(given, name) for name in (*names, "assistant_tokens")}
    model_args = redacted(values_of("--model_args", given.model_args))
    found["model_args"] = {
        name: without_password(value) if isinstance(value, str) else value for name, value in model_args.items()
    }
    return found


def _machine() -> dict[str, Any]:
    import datetime

    from lmms_eval_mai.engines.transformers.options import TransformersOptions, device_of
    from lmms_eval_mai.latency.measure import device_name
    from lmms_eval_mai.run.fingerprint import version

    return {
        "device": device_name(device_of(TransformersOptions())),
        **{name: version(name) for name in ("lmms-eval-mai", "lmms-eval", "torch", "transformers")},
        "load_average": round(os.getloadavg()[0], 2),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _tell(line: str) -> None:
    print(f"lmms-eval-mai: {line}", file=sys.stderr, flush=True)
