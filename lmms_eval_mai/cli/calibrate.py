"""`lmms-eval-mai calibrate`: the threshold of `verify=confidence`, chosen by documents with a bound on its loss."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lmms_eval_mai.cli.terminal import tell
from lmms_eval_mai.errors import ArgumentError

if TYPE_CHECKING:
    from lmms_eval_mai.reports.calibrate import Choice
    from lmms_eval_mai.reports.runs import Runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="an --output_path of lmms-eval")
    parser.add_argument(
        "--max_loss", type=float, default=1.0, metavar="POINTS", help="the loss that may happen; default: 1 point"
    )
    parser.add_argument(
        "--confidence", type=float, default=0.95, metavar="P", help="of the promise, below 1; default: 0.95"
    )
    parser.add_argument("--against", choices=("full-rt", "large-r"), default="full-rt", help="default: full-rt")
    parser.add_argument("--verify", choices=("confidence", "both"), default="confidence", help="default: confidence")
    parser.add_argument(
        "--output", type=Path, default=Path("min_confidence.json"), metavar="FILE", help="default: min_confidence.json"
    )


def main(given: argparse.Namespace) -> int:
    """Print the thresholds and write the file. Returns 1 if no threshold keeps the promise. Raises a `MaiError`."""
    from lmms_eval_mai.reports import build, calibrate
    from lmms_eval_mai.reports.formats import markdown
    from lmms_eval_mai.reports.report import Report

    if not 0 < given.max_loss < 100:
        raise ArgumentError(f"--max_loss {given.max_loss:g} is invalid: expected points above 0 and below 100.")
    if not 0.5 <= given.confidence < 1:
        raise ArgumentError(f"--confidence {given.confidence:g} is invalid: expected at least 0.5 and below 1.")
    max_loss, name = given.max_loss / 100, {"full-rt": "Full RT", "large-r": "large R"}[given.against]
    runs = build.read(given.folders)
    for gap in runs.gaps:
        tell(gap)
    found = calibrate.choices(runs, given.verify, given.against, max_loss, given.confidence)
    print(markdown(Report(tuple(calibrate.choice_table(found, name)))))
    for choice in found:
        if refused := calibrate.refusal(choice, max_loss, given.confidence):
            tell(refused)
    promise = (
        f"With a confidence of {given.confidence:.0%}, the mean score on other documents of the same kind is at most "
        f"{calibrate.points(given.max_loss)} below that of {name}. This holds for each threshold by itself, for this "
        "pair of models, and not for the documents that chose it."
    )
    if all(choice.threshold is None for choice in found):
        return 1
    _write(given.output, given.verify, found, runs, promise)
    print(f"{promise}\n\nWrote {given.output}. Paste:\n\n  verify={given.verify},min_confidence={given.output}")
    for choice in found:
        if choice.threshold is not None:
            print(f"  verify={given.verify},min_confidence={choice.threshold:g}    for {choice.name} only")
    return 0


def _write(file: Path, verify: str, found: "list[Choice]", runs: "Runs", promise: str) -> None:
    """Write the file for `min_confidence`. Raises `ArgumentError`."""
    from lmms_eval_mai.reports.calibrate import POOLED
    from lmms_eval_mai.run.calibration import Calibration

    cascades = [
        run for run in runs.first_checks() if run.benchmark in {name for one in found for name in one.losses.names}
    ]
    images = {image for run in cascades for of_one in run.samples.images.dropna() for image in of_one}
    thresholds = {choice.name: choice.threshold for choice in found if choice.threshold is not None}
    everything = thresholds.get(found[0].name) if len(found) == 1 else thresholds.pop(POOLED, None)
    calibration = Calibration(
        verify=verify,  # type: ignore[arg-type]
        pooled=everything,
        thresholds=thresholds,
        promise=promise,
        small=cascades[0].method.small,
        large=cascades[0].method.model,
        documents={choice.name: choice.documents for choice in found if choice.name != POOLED},
        images=tuple(sorted(images)),
    )
    try:
        calibration.write(file)
    except OSError as error:
        raise ArgumentError(f"--output {file} cannot be written ({error.strerror}).") from None
