"""Choose the threshold of a method that asks how sure a model is by documents, with a bound on its loss.

Read the output folders of finished runs on the same documents that together have all calls of the method and of its
baseline (docs/confidence.md), and choose the cheapest threshold whose expected loss on other documents of the same kind
is at most --max_loss points, with the given confidence. Nothing is run. Print the arguments to paste, and write a file
for min_confidence; a file that has thresholds of other methods of these models keeps them. Do not score the same
documents with it.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lmms_eval_mai.cli import tell
from lmms_eval_mai.errors import ArgumentError

if TYPE_CHECKING:
    from lmms_eval_mai.analysis.runs.runs import Runs
    from lmms_eval_mai.analysis.threshold import Choice, Promise
    from lmms_eval_mai.run.calibration import Calibration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="an --output_path of lmms-eval")
    add = parser.add_argument
    add("--max_loss", type=float, default=1.0, metavar="POINTS", help="largest loss to allow; default: 1 point")
    add("--confidence", type=float, default=0.95, metavar="P", help="of the bound on the loss; default: 0.95")
    add("--method", default="mai_confidence", metavar="METHOD", help="a name or a YAML file; default: mai_confidence")
    add("--against", choices=("full-rt", "large-r"), help="default: full-rt; if no small model is asked: large-r")
    add(
        "--loss",
        choices=("score", "answers"),
        default="score",
        help="answers: a question is lost if its answer differs from the baseline's; needs no gold answers",
    )
    add("--output", type=Path, default="min_confidence.json", metavar="FILE", help="default: %(default)s")


def main(given: argparse.Namespace) -> int:
    """Return 1 if no threshold keeps the promise."""
    from lmms_eval_mai.analysis.report import Report, markdown
    from lmms_eval_mai.analysis.runs.runs import Runs
    from lmms_eval_mai.analysis.threshold import (
        Choice,
        choice_table,
        losses_of_runs,
        promised,
        refusal,
        threshold_index,
    )

    promise = _promise(given)
    runs = Runs.read(given.folders)
    for gap in runs.gaps:
        tell(gap)
    found = losses_of_runs(runs, promise)
    choices = [Choice(one, threshold_index(one.values, one.is_exact, promise)) for one in found]
    print(markdown(Report(tuple(choice_table(choices, promise)))))
    for choice in choices:
        if choice.losses.run.is_part:
            tell(f"{choice.benchmark}: --limit or --offset chose the documents. Kinds that are not here may lose more.")
        if refused := refusal(choice, promise):
            tell(refused)
    chosen = [choice for choice in choices if choice.threshold is not None]
    if not chosen:
        return 1
    sentence = promised(promise, chosen)
    _write(given.output, _calibration(promise, choices, runs, sentence))
    print(f"{sentence}\n\nWrote {given.output}. Paste:\n\n  method={given.method},min_confidence={given.output}")
    for choice in chosen:
        print(f"  method={given.method},min_confidence={choice.threshold!r}    for {choice.benchmark} only")
    return 0


def _promise(given: argparse.Namespace) -> "Promise":
    from lmms_eval_mai.analysis.threshold import BASELINES, Promise
    from lmms_eval_mai.method import files

    if not 0 < given.max_loss < 100:
        raise ArgumentError(f"--max_loss {given.max_loss:g} is invalid: expected points above 0 and below 100.")
    if not 0.5 <= given.confidence < 1:
        raise ArgumentError(f"--confidence {given.confidence:g} is invalid: expected 0.5 or more, and below 1.")
    method = files.load(given.method)
    if sum(bool(stop.sure) and stop.min_confidence is None for stop in method.stops) != 1:
        raise ArgumentError(f"--method {given.method} must have one stop with `sure` and no threshold of its own.")
    return Promise(
        method=method,
        max_loss=given.max_loss / 100,
        confidence=given.confidence,
        baseline=BASELINES[given.against or ("full-rt" if "small" in method.sides else "large-r")],
        loss=given.loss,
    )


def _calibration(promise: "Promise", choices: "list[Choice]", runs: "Runs", sentence: str) -> "Calibration":
    from lmms_eval_mai.contract import SIDES
    from lmms_eval_mai.run import calibration

    run = choices[0].losses.run
    method = calibration.Calibrated(
        promise.method,
        {choice.benchmark: choice.threshold for choice in choices if choice.threshold is not None},
        sentence,
        {choice.benchmark: choice.losses.run.documents for choice in choices},
        run.replay_setup.variant or run.setup.think,
    )
    models = {side: model for side, model in zip(SIDES, runs.pair(run), strict=True) if model}
    documents = [hashes for choice in choices for hashes in choice.losses.run.samples.images.dropna()]
    images = tuple(sorted({image for hashes in documents for image in hashes}))
    return calibration.Calibration({promise.method.name: method}, models, run.engines, images)


def _write(file: Path, new: "Calibration") -> None:
    """Write the file for `min_confidence`. It keeps the thresholds of other methods. Raises `ArgumentError`."""
    from lmms_eval_mai.run import calibration

    earlier = calibration.read(str(file)) if file.exists() else new
    kept = earlier if earlier.methods.keys() - new.methods.keys() else new
    for before, now in ((kept.models, new.models), (kept.engines, new.engines)):
        if any(before.get(side, value) != value for side, value in now.items()):
            raise ArgumentError(f"--output {file} has thresholds of other models or engines: give another file.")
    both = calibration.Calibration(
        {**kept.methods, **new.methods},
        {**kept.models, **new.models},
        {**kept.engines, **new.engines},
        tuple(sorted({*kept.images, *new.images})),
    )
    try:
        both.write(file)
    except OSError as error:
        raise ArgumentError(f"--output {file} cannot be written ({error.strerror}).") from None
