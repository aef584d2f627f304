"""`lmms-eval-mai bench`: the measured times of methods on one pair of models (Table 12, and more)."""

import argparse
import asyncio
import datetime
import functools
import json
import os
import statistics
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lmms_eval_mai.cli.terminal import check_at_least_one, log_to_terminal, refuse, tell, values_of
from lmms_eval_mai.engines.transformers.options import TransformersOptions, device_of
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.harness.documents import TaskDocuments
from lmms_eval_mai.paper.prompts import MAX_TOKENS
from lmms_eval_mai.redaction import redacted, without_password
from lmms_eval_mai.reports.formats import markdown, plain
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.totals import version
from lmms_eval_mai.times.bench import ROWS, Measurement, cells, engine_of, report
from lmms_eval_mai.times.documents import CHARTS, Documents, benchmark_of, make_plan, write_charts
from lmms_eval_mai.times.measure import device_name

MEGAPIXELS = 0.26
"""512 x 512 px: 256 tokens of Qwen3-VL, as in the paper's Tables 3 and 4."""

SET_HERE = {
    "pair": "--pair names the pair",
    "mode": "--rows chooses the methods",
    "transfer": "all rows transfer the whole thinking",
    "verify": "the row mai-confident has verify=confidence",
}
"""Model arguments that the command sets itself, and why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pair", required=True, metavar="PAIR", help="a named pair, or the path of a YAML file")
    parser.add_argument("--model_args", default="", help="more model arguments (format as in lmms-eval)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--task", metavar="TASK", help="the documents of this task; default: drawn bar charts")
    source.add_argument(
        "--megapixels",
        type=float,
        default=MEGAPIXELS,
        metavar="M",
        help="size of a drawn chart; default: %(default)s",
    )
    parser.add_argument("--include_path", metavar="DIR", help="a folder with more tasks, as in lmms-eval")
    parser.add_argument(
        "--lengths",
        default="own",
        metavar="LENGTHS",
        help="own (default): the models end their answers. paper:BENCHMARK: output lengths and exits are forced to the "
        "paper's figures of pope, mmbench_en_dev, mmmu_val, chartqa, infovqa_val or realworldqa",
    )
    parser.add_argument("--rows", metavar="ROW,ROW", help="default: all; a wrong name shows their names")
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


AFTER_INTERRUPT = "A table has the finished runs, if there are any."


def main(given: argparse.Namespace) -> None:
    """Measure all rows and print them. Raises a `MaiError`."""
    log_to_terminal()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # killed processes may still write into it
        measurement = _measurement(given, Path(folder))
        try:
            asyncio.run(measurement.run())
        finally:  # also after Ctrl-C
            if measurement.runs:
                _print(given, measurement)
    if not measurement.runs:
        raise ArgumentError("No row could run. The reasons are above.")


def _measurement(given: argparse.Namespace, folder: Path) -> Measurement:
    """Return what is measured, after all checks that need no engine. Drawn documents are written into the folder.
    Raises a `MaiError`."""
    check_at_least_one(given, "samples", "single_samples", "repeats", "assistant_tokens")
    benchmark = benchmark_of(given.lengths)
    chosen = cells(given.rows, given.concurrency)
    arguments = values_of("--model_args", given.model_args)
    refuse(arguments, SET_HERE)
    arguments["pair"] = given.pair
    if given.max_new_tokens is not None:
        arguments["max_new_tokens"] = given.max_new_tokens
    first_check = parse({**arguments, "verify": "confidence"}).first_check()
    arguments.pop("min_confidence", None)  # the other rows do not verify by confidence
    config = parse(arguments)
    if "vllm-ngram" in dict(chosen) and "speculative_config" in config.large.arguments:
        raise ArgumentError(
            "The row vllm-ngram gives the large model a speculative_config of its own: leave yours out, or name the "
            "other rows with --rows."
        )
    if given.task is None and given.include_path is not None:
        raise ArgumentError("--include_path has no effect without --task: give --task too.")
    source, include_path = _source(given, folder, forced=benchmark is not None)
    single, many = (
        Documents(source, number, make_plan(benchmark, number) if benchmark else None, arguments)
        for number in (min(count, len(source.numbers)) for count in (given.single_samples, given.samples))
    )
    limit = given.max_new_tokens or config.max_new_tokens or MAX_TOKENS
    if given.max_new_tokens is None and many.plan is not None:  # the mean of the forced lengths of large R
        steps = many.plan.steps.items()
        limit = round(statistics.fmean(step.tokens for (_, *call), step in steps if call == ["large", "think"]))
    build = functools.partial(engine_of, arguments=arguments, assistant_tokens=given.assistant_tokens)
    for name in dict.fromkeys(name for row, _ in chosen for name in ROWS[row].engines):
        build(name)  # before the first start
    one_row = torch.cuda.is_available()
    return Measurement(chosen, single, many, given.repeats, limit, include_path, build, one_row, tell, first_check)


def _source(given: argparse.Namespace, folder: Path, forced: bool) -> tuple[TaskDocuments, str | None]:
    task, include_path, count = given.task, given.include_path, max(given.samples, given.single_samples)
    if task is None:
        if not 0 < given.megapixels <= 100:
            raise ArgumentError(f"--megapixels {given.megapixels} is invalid: expected a number above 0 and up to 100.")
        write_charts(folder, count, given.megapixels)
        task, include_path = CHARTS, str(folder)
    source = TaskDocuments(task, count, {}, include_path)
    if not forced and source.open(source.numbers[0], parse({})).variant != "R":
        raise ArgumentError(
            f"Task {task} has no Reasoning prompt, and the rows need it without forced lengths: give a task that ends "
            "in _r, or --lengths paper:chartqa."
        )
    return source, include_path


def _print(given: argparse.Namespace, measurement: Measurement) -> None:
    machine = {
        "device": device_name(device_of(TransformersOptions())),
        **{name: version(name) for name in ("lmms-eval-mai", "lmms-eval", "torch", "transformers")},
        "load_average": round(os.getloadavg()[0], 2),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    found = report(measurement)
    measured = {
        "single": measurement.single.facts(),
        "many": measurement.many.facts(),
        "runs": [asdict(run) for run in measurement.runs],
        "starts": measurement.starts,
        "tables": plain(found.tables),
        "failed": measurement.failed,
        "complete": measurement.complete,
    }
    print("\n" + markdown(found))
    print(json.dumps({"benchmark": "bench", **settings_of(given), **measured, "machine": machine}), flush=True)


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    """Return the options for the line of JSON, without secrets."""
    model_args = {
        name: without_password(value) if isinstance(value, str) else value
        for name, value in redacted(values_of("--model_args", given.model_args)).items()
    }
    return {**vars(given), "model_args": model_args}
