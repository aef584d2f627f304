"""Choose the threshold of verify=confidence by documents, with a bound on its loss.

Read the output folders of a cascade, of Full RT and of large R on the same documents, as far as the choices need them
(docs/confidence.md), and choose the cheapest threshold whose expected loss on other documents of the same kind is at
most --max_loss points, with the given confidence. Nothing is run. Print the arguments to paste, and write a file for
min_confidence. Do not score the same documents with it.
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
    add("--max_loss", type=float, default=1.0, metavar="POINTS", help="the loss that may happen; default: 1 point")
    add("--confidence", type=float, default=0.95, metavar="P", help="of the promise; default: 0.95")
    add("--against", choices=("full-rt", "large-r"), help="default: full-rt; with --thinker large: large-r")
    add("--verify", choices=("confidence", "both"), default="confidence", help="default: confidence")
    add("--thinker", choices=("small", "large"), default="small", help="as in --model_args; default: small")
    add("--second_check", choices=("on", "off"), default="on", help="as in --model_args; default: on")
    add(
        "--loss",
        choices=("score", "answers"),
        default="score",
        help="answers: a question is lost where the answer differs from the baseline's; needs no gold answers",
    )
    add("--to_label", type=Path, metavar="FILE", help="only write the documents that need a gold answer next")
    completed = "the completed files of --to_label; no other gold answer is read"
    add("--labels", type=Path, nargs="+", metavar="FILE", help=completed)
    add("--looks", type=int, default=1, metavar="N", help="how often you will look, decided before; default: 1")
    default = Path("min_confidence.json")
    add("--output", type=Path, default=default, metavar="FILE", help=f"default: {default}")


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
            tell(
                f"{choice.benchmark}: more gold answers may lower the threshold. --to_label writes the next documents."
            )
    chosen = [choice for choice in found if choice.threshold is not None]
    if not chosen:
        return 1
    promise = calibrate.promise(wanted, chosen)
    _write(given.output, wanted, found, runs, promise)
    print(f"{promise}\n\nWrote {given.output}. Paste:\n\n  {wanted.choices},min_confidence={given.output}")
    for choice in chosen:
        print(f"  {wanted.choices},min_confidence={choice.threshold!r}    for {choice.benchmark} only")
    return 0


def _wanted(given: argparse.Namespace) -> "Wanted":
    """Return the promise that the options ask for. Raises `ArgumentError`."""
    from lmms_eval_mai.paper.confidence import Choices
    from lmms_eval_mai.reports.losses import Wanted

    if not 0 < given.max_loss < 100:
        raise ArgumentError(f"--max_loss {given.max_loss:g} is invalid: expected points above 0 and below 100.")
    if not 0.5 <= given.confidence <= 0.995:
        raise ArgumentError(f"--confidence {given.confidence:g} is invalid: expected 0.5 to 0.995.")
    if given.looks < 1:
        raise ArgumentError(f"--looks {given.looks} is invalid: expected 1 or more.")
    if given.thinker == "large" and given.second_check == "off":
        raise ArgumentError("--second_check off has no effect with --thinker large, which has no second check.")
    if given.loss == "answers" and (given.labels or given.to_label):
        raise ArgumentError("--loss answers needs no gold answers: leave --labels and --to_label out.")
    return Wanted(
        max_loss=given.max_loss / 100,
        confidence=given.confidence,
        against=given.against or ("large-r" if given.thinker == "large" else "full-rt"),
        choices=Choices(given.verify, given.thinker, given.second_check),
        loss=given.loss,
        looks=given.looks,
    )


def _write(file: Path, wanted: "Wanted", found: "list[Choice]", runs: "Runs", promise: str) -> None:
    """Write the file for `min_confidence`. Raises `ArgumentError`."""
    from lmms_eval_mai.reports.losses import models
    from lmms_eval_mai.run.calibration import Calibration

    cascades = [choice.losses.run for choice in found]
    small, large = models(runs, cascades[0])
    images = {image for run in cascades for of_one in run.samples.images.dropna() for image in of_one}
    thresholds = {choice.benchmark: choice.threshold for choice in found if choice.threshold is not None}
    calibration = Calibration(
        choices=wanted.choices,
        pooled=thresholds.get(found[0].benchmark) if len(found) == 1 else None,
        thresholds=thresholds,
        promise=promise,
        small=small,
        large=large,
        documents={choice.benchmark: choice.losses.documents for choice in found},
        images=tuple(sorted(images)),
    )
    try:
        calibration.write(file)
    except OSError as error:
        raise ArgumentError(f"--output {file} cannot be written ({error.strerror}).") from None
