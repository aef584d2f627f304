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

from lmms_eval_mai.cli.terminal import tell
from lmms_eval_mai.errors import ArgumentError

if TYPE_CHECKING:
    from lmms_eval_mai.reports.calibrate import Choice
    from lmms_eval_mai.reports.losses import Wanted
    from lmms_eval_mai.reports.runs import Runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
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
    add("--to_label", type=Path, metavar="FILE", help="only write the documents that need a gold answer next")
    completed = "files of --to_label with `gold` filled in; the scores of the runs are not used"
    add("--labels", type=Path, nargs="+", metavar="FILE", help=completed)
    add(
        "--looks",
        type=int,
        default=1,
        metavar="N",
        help="how often you will calibrate, decided before the first time; default: 1",
    )
    add("--output", type=Path, default="min_confidence.json", metavar="FILE", help="default: %(default)s")


def main(given: argparse.Namespace) -> int:
    """Print the thresholds and write the file. Returns 1 if no threshold keeps the promise. Raises a `MaiError`."""
    from lmms_eval_mai.reports import build, calibrate, labels, losses
    from lmms_eval_mai.reports.formats import markdown
    from lmms_eval_mai.reports.report import Report

    wanted = _wanted(given)
    runs = build.read(given.folders)
    for gap in runs.gaps:
        tell(gap)
    golds = labels.read(given.labels or ()) if given.labels or given.to_label else None
    known = losses.answers(runs, wanted, golds)
    found = [calibrate.choose(losses.losses(runs, one, wanted), wanted) for one in known]
    if given.to_label is not None:
        listed = [(one.run, calibrate.to_label(one, choice, wanted)) for one, choice in zip(known, found, strict=True)]
        number = labels.write(given.to_label, listed)
        print(f"Wrote {given.to_label}: {number:,} documents need a gold answer.")
        return 0
    print(markdown(Report(tuple(calibrate.choice_table(found, wanted)))))
    for choice in found:
        if choice.losses.run.is_part:
            tell(f"{choice.benchmark}: --limit or --offset chose the documents. Kinds that are not here may lose more.")
        if refused := calibrate.refusal(choice, wanted):
            tell(refused)
        elif choice.may_go_on:
            tell(f"{choice.benchmark}: more gold answers may lower the threshold. --to_label lists the next documents.")
    chosen = [choice for choice in found if choice.threshold is not None]
    if not chosen:
        return 1
    promise = calibrate.promise(wanted, chosen)
    _write(given.output, wanted, found, runs, promise)
    print(f"{promise}\n\nWrote {given.output}. Paste:\n\n  method={given.method},min_confidence={given.output}")
    for choice in chosen:
        print(f"  method={given.method},min_confidence={choice.threshold!r}    for {choice.benchmark} only")
    return 0


def _wanted(given: argparse.Namespace) -> "Wanted":
    """Return the promise that the options ask for. Raises `ArgumentError`."""
    from lmms_eval_mai.method import files
    from lmms_eval_mai.reports.losses import Wanted

    if not 0 < given.max_loss < 100:
        raise ArgumentError(f"--max_loss {given.max_loss:g} is invalid: expected points above 0 and below 100.")
    if not 0.5 <= given.confidence <= 0.995:
        raise ArgumentError(f"--confidence {given.confidence:g} is invalid: expected 0.5 to 0.995.")
    if given.looks < 1:
        raise ArgumentError(f"--looks {given.looks} is invalid: expected 1 or more.")
    method = files.load(given.method)
    if sum(bool(stop.sure) and stop.min_confidence is None for stop in method.stops) != 1:
        raise ArgumentError(f"--method {given.method} must have one stop with `sure` and no threshold of its own.")
    if given.loss == "answers" and (given.labels or given.to_label):
        raise ArgumentError("--loss answers needs no gold answers: leave --labels and --to_label out.")
    return Wanted(
        method=method,
        max_loss=given.max_loss / 100,
        confidence=given.confidence,
        against=given.against or ("full-rt" if "small" in method.sides else "large-r"),
        loss=given.loss,
        looks=given.looks,
    )


def _write(file: Path, wanted: "Wanted", found: "list[Choice]", runs: "Runs", promise: str) -> None:
    """Write the file for `min_confidence`. It keeps the thresholds of other methods. Raises `ArgumentError`."""
    from lmms_eval_mai.contract import SIDES
    from lmms_eval_mai.reports.losses import models
    from lmms_eval_mai.run import calibration

    run = found[0].losses.run
    images = {image for one in found for of_one in one.losses.run.samples.images.dropna() for image in of_one}
    of_run = {side: model for side, model in zip(SIDES, models(runs, run), strict=True) if model}
    chosen = calibration.Calibrated(
        wanted.method,
        {choice.benchmark: choice.threshold for choice in found if choice.threshold is not None},
        promise,
        {choice.benchmark: choice.losses.documents for choice in found},
        run.setup.of_replays.variant or run.setup.think,
    )
    nothing = calibration.Calibration({}, {})
    earlier = calibration.read(str(file)) if file.exists() else nothing
    kept = earlier if earlier.methods.keys() - {wanted.method.name} else nothing
    for known, new in ((kept.models, of_run), (kept.engines, run.engines)):
        if any(known.get(side, value) != value for side, value in new.items()):
            raise ArgumentError(f"--output {file} has thresholds of other models or engines: give another file.")
    written = calibration.Calibration(
        {**kept.methods, wanted.method.name: chosen},
        {**kept.models, **of_run},
        {**kept.engines, **run.engines},
        tuple(sorted(images | {*kept.images})),
    )
    try:
        written.write(file)
    except OSError as error:
        raise ArgumentError(f"--output {file} cannot be written ({error.strerror}).") from None
