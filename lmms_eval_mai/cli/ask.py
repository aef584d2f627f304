"""`lmms-eval-mai ask`: answers one question, and prints every call with its prompt.

The question is a document of a task or the user's own. With `--dry-run`, two scripted engines take the place of the
models. Their answers never agree, so all calls of the mode are made.
"""

import argparse
import asyncio
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from lmms_eval_mai.cli.exit_code import exit_code_of
from lmms_eval_mai.errors import ArgumentError

if TYPE_CHECKING:  # the other commands must not wait for these imports
    from lmms_eval_mai.contract import Engine, Prompt, Side
    from lmms_eval_mai.paper.sample import Sample, Trace
    from lmms_eval_mai.run.config import Config

DRY_ANSWERS = {
    "short": "<short answer of the {side} model>",
    "think": "<thinking of the {side} model>",
    "stage2": "<answer of the {side} model after its thinking>",
    "score": "<attention of the {side} model>",
    "transfer": "<final answer of the {side} model>",
    "task": "<answer of the {side} model>",
}
"""Stage -> the answer that `--dry-run` puts in its place."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--tasks", metavar="TASK", help="ask a document of this task of lmms-eval")
    parser.add_argument("--doc", type=int, default=0, metavar="N", help="the number of the document (default: 0)")
    parser.add_argument("--include_path", help="a folder with more tasks, as in lmms-eval")
    parser.add_argument("--question", metavar="TEXT", help="ask this question instead of a document")
    parser.add_argument("--image", action="append", metavar="FILE", help="an image of the question; may be repeated")
    parser.add_argument("--option", action="append", metavar="TEXT", help="an answer to choose from; repeat it")
    parser.add_argument("--model_args", default="", help="the model arguments (format as in lmms-eval)")
    parser.add_argument("--gen_kwargs", default="", help="decoding arguments (format as in lmms-eval)")
    parser.add_argument("--dry-run", action="store_true", help="print only the prompts, and load no model")


def main(given: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    log_to_terminal()

    def run() -> None:
        for text in _ask(given):
            print(text, flush=True)

    return exit_code_of(run)


def _ask(given: argparse.Namespace) -> Iterator[str]:
    """Return the texts to print. Raises a `MaiError`."""
    from lmms_eval_mai.cli.command_line import values_of
    from lmms_eval_mai.run.ask import TASK, sample_of
    from lmms_eval_mai.run.config import parse
    from lmms_eval_mai.run.decoding import check_conflict, sampling

    _check(given)
    config = parse({"journal": "off", **values_of("--model_args", given.model_args), "log_prompts": True})
    gen_kwargs = values_of("--gen_kwargs", given.gen_kwargs)
    check_conflict(gen_kwargs, config)
    if given.tasks is None:
        decoding = sampling(gen_kwargs, config, own_task=True)

        def open_question() -> "Sample":
            return sample_of(given.image, given.question, given.option, decoding)

        trace, sample = _answer(config, {TASK: gen_kwargs}, given.dry_run, open_question)
        yield from _calls(trace, sample, given.dry_run)
        return
    from lmms_eval_mai.cli.document import Document
    from lmms_eval_mai.harness.requests import check_stages

    document = Document(given.tasks, given.doc, gen_kwargs, given.include_path)
    check_stages(config.mode, [document.name] if document.two_stage else [])
    sampling(document.decoding, config, own_task=document.own_task)
    trace, sample = _answer(config, {document.name: document.decoding}, given.dry_run, lambda: document.open(config))
    yield from _calls(trace, sample, given.dry_run)
    if not given.dry_run:
        yield f"score: {document.score(trace)}"


def _check(given: argparse.Namespace) -> None:
    """Refuse arguments that contradict each other. Raises `ArgumentError`."""
    if (given.tasks is None) == (given.question is None):
        raise ArgumentError("Give either --tasks TASK and --doc N, or --question TEXT and --image FILE.")
    if given.tasks is not None and (given.image or given.option):
        raise ArgumentError("--image and --option belong to --question, and --tasks takes the images of its document.")
    if given.doc < 0:
        raise ArgumentError(f"--doc {given.doc} is invalid: the first document has the number 0.")


def _answer(
    config: "Config", decoding: dict[str, Any], dry_run: bool, open_sample: "Callable[[], Sample]"
) -> "tuple[Trace, Sample]":
    """Return the trace and the sample. Raises a `MaiError`."""
    if dry_run:
        sample = open_sample()
        return asyncio.run(_walk(sample, config)), sample
    from lmms_eval_mai.run.engines import Engines
    from lmms_eval_mai.run.run import Run

    engines = Engines(config)
    run = Run(engines, config)
    opened: list[Sample] = []

    def open_and_keep() -> "Sample":
        opened.append(open_sample())
        return opened[0]

    try:
        run.begin(decoding)
        return run.submit(open_and_keep).result(), opened[0]
    finally:
        engines.stop()
        run.close()


async def _walk(sample: "Sample", config: "Config") -> "Trace":
    """Make all calls of the mode, without a model."""
    from lmms_eval_mai.cli.dry_engine import DryEngine
    from lmms_eval_mai.engines.scripted.engine import Answer
    from lmms_eval_mai.paper.cascade import MODES
    from lmms_eval_mai.run.pair import pair_of

    def answer(prompt: "Prompt") -> Answer:
        return Answer(DRY_ANSWERS[prompt.key.stage].format(side=prompt.key.side))

    engines: dict[Side, Engine] = {engine.side: DryEngine(engine, answer) for engine in config.engines()}
    for engine in engines.values():
        await engine.start()
    never_agrees = dataclasses.replace(sample.benchmark, parse=lambda answer, doc: None)
    sample = dataclasses.replace(sample, benchmark=never_agrees)
    config = dataclasses.replace(config, sparse_delta=1.0)  # keeps all tokens
    return await MODES[config.mode](sample, pair_of(engines, config))


def _calls(trace: "Trace", sample: "Sample", dry_run: bool) -> Iterator[str]:
    """Return one text per call, then the exit."""
    from lmms_eval_mai.paper.sample_run import decoding_of

    for call, prompt in zip(trace.calls, trace.prompts, strict=True):
        limit = decoding_of(sample, call.key.stage).max_tokens
        yield f"--- {call.key.side} {call.key.stage}, at most {limit:,} tokens"
        for message in prompt:
            content = "\n".join(part.rstrip("\n") for part in message["content"])
            yield f"[{message['role']}]\n{content}"
        if not dry_run:
            yield f"[{call.key.side} model]\n{call.text}"
            tokens = f"{call.prompt_tokens} prompt tokens ({call.cached_tokens} cached), {call.output_tokens} output"
            sure = ""
            if call.answer_logprob is not None:
                sure = f", probability of the answer {math.exp(call.answer_logprob):.3f}"
            yield f"{tokens} tokens, {call.total_s:.2f} s, finish reason {call.finish_reason}{sure}"
        yield ""
    if dry_run:
        yield "Dry run: no model was loaded. If two answers agree, the calls after them are not made."
        if trace.selection is not None:
            yield "With a model, only the key tokens of the thinking are transferred (transfer=sparse)."
        return
    for verification in trace.verifications:
        verdict = "agree" if verification.agree else "do not agree"
        yield f"parsed answers: small {verification.small!r}, large {verification.large!r}: they {verdict}"
    if (selection := trace.selection) is not None:
        kept = f"{selection.kept_tokens} of {selection.scored_tokens} tokens of the thinking were kept"
        yield f"{kept}: {selection.share:.1%} of the attention in layer {selection.layer}"
    yield f"exit: {trace.exit}\nanswer: {trace.text}"


def log_to_terminal() -> None:
    """Show warnings, and the information of this package, on the terminal."""
    from loguru import logger

    logger.remove()
    logger.add(sys.stderr, level="WARNING", format="{message}")
    logger.add(
        sys.stderr,
        level="INFO",
        format="{message}",
        filter=lambda record: record["level"].name == "INFO" and str(record["name"]).startswith("lmms_eval_mai"),
    )
