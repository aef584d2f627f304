"""Answer one question, and print the prompt and the answer of every call to a model.

The question is a document of a task (--tasks TASK --doc N), which is also scored, or your own (--question TEXT --image
FILE). There is no call store, unless the model arguments name one. With --dry-run, scripted engines take the place of
the models. Their answers never agree, so all calls of the method are made.
"""

import argparse
import asyncio
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from lmms_eval_mai.cli.terminal import log_to_terminal, values_of
from lmms_eval_mai.contract import Side
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.harness.documents import TaskDocuments
from lmms_eval_mai.method.calls import decoding_of
from lmms_eval_mai.method.run import run
from lmms_eval_mai.method.trace import Sample, Trace
from lmms_eval_mai.redaction import error_text
from lmms_eval_mai.run.config import Config, parse
from lmms_eval_mai.run.decoding import check_conflict, sampling


def add_arguments(parser: argparse.ArgumentParser) -> None:
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--tasks", metavar="TASK", help="ask a document of this task of lmms-eval")
    asked.add_argument("--question", metavar="TEXT", help="ask this question instead of a document")
    parser.add_argument("--doc", type=int, default=0, metavar="N", help="the number of the document (default: 0)")
    parser.add_argument("--include_path", help="a folder with more tasks, as in lmms-eval")
    parser.add_argument("--image", action="append", metavar="FILE", help="an image of the question; may be repeated")
    parser.add_argument("--option", action="append", metavar="TEXT", help="an answer to choose from; repeat it")
    parser.add_argument("--model_args", default="", help="the model arguments (format as in lmms-eval)")
    parser.add_argument("--gen_kwargs", default="", help="decoding arguments (format as in lmms-eval)")
    parser.add_argument("--dry-run", action="store_true", help="print only the prompts, and load no model")


def main(given: argparse.Namespace) -> None:
    log_to_terminal()
    for text in _ask(given):
        print(text, flush=True)


def _ask(given: argparse.Namespace) -> Iterator[str]:
    """Return what is printed, text by text. Raises a `MaiError`."""
    from lmms_eval_mai.run.ask import TASK, checked_question

    if given.tasks is not None and (given.image or given.option):
        raise ArgumentError("--image and --option belong to --question, and --tasks takes the images of its document.")
    if given.doc < 0:
        raise ArgumentError(f"--doc {given.doc} is invalid: the first document has the number 0.")
    config = parse({"store": "off", **values_of("--model_args", given.model_args), "log_prompts": True})
    gen_kwargs = values_of("--gen_kwargs", given.gen_kwargs)
    check_conflict(gen_kwargs, config)
    documents = None
    if given.question is not None:
        decoding = sampling(gen_kwargs, config, own_task=True)
        sample = checked_question(given.image, given.question, given.option, decoding)()
        gen_kwargs = {TASK: gen_kwargs}
    else:
        documents = TaskDocuments(given.tasks, 1, gen_kwargs, given.include_path, first=given.doc)
        documents.check(config)
        sample = documents.open(given.doc, config)
        gen_kwargs = {documents.name: documents.decoding}
    trace = _dry_answer(config, sample) if given.dry_run else _answer(config, sample, gen_kwargs)
    yield from _calls(trace, sample, given.dry_run)
    if given.dry_run:
        yield "Dry run: no model was loaded. If a check passes, the calls after it are not made."
        if config.transfer == "sparse":
            yield "With a model, only the key tokens of the thinking are transferred (transfer=sparse)."
        return
    yield from _outcome(trace)
    if documents is not None:
        yield f"score: {_score(documents, trace)}"


def _answer(config: Config, sample: Sample, decoding: Mapping[str, Any]) -> Trace:
    from lmms_eval_mai.run.engines import Engines
    from lmms_eval_mai.run.evaluation import Evaluation

    engines = Engines(config)
    evaluation = Evaluation(engines, config)
    try:
        engines.run(evaluation.begin(decoding))
        return engines.run(evaluation.run_one(lambda: sample))
    finally:
        evaluation.stop()


def _dry_answer(config: Config, sample: Sample) -> Trace:
    """Make all calls of the method, without a model."""
    from lmms_eval_mai.run.evaluation import attention_engine, pair_of

    if config.transfer == "sparse":
        attention_engine(config)  # refuses an engine that gives no attention weights
    never_agrees = replace(sample.benchmark, parse=lambda answer, doc: None)

    def engine(side: Side) -> ScriptedEngine:
        return ScriptedEngine(side, lambda prompt: Answer(f"<text of the {side} model, prompt {prompt.key.prompt}>"))

    async def walk() -> Trace:
        models = {used.side: engine(used.side) for used in config.engines()}
        for model in models.values():
            await model.start()
        return await run(replace(sample, benchmark=never_agrees), pair_of(config, models, None))

    return asyncio.run(walk())


def _calls(trace: Trace, sample: Sample, dry_run: bool) -> Iterator[str]:
    """Return the prompt of each call, and its answer and figures."""
    for call, prompt in zip(trace.calls, trace.prompts, strict=True):
        limit = decoding_of(sample, call.key.prompt).max_tokens
        yield f"--- {call.key.side} {call.key.prompt}, at most {limit:,} tokens"
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


def _outcome(trace: Trace) -> Iterator[str]:
    """Return what was compared and kept, the exit and the answer."""
    if trace.min_confidence is not None:
        least = f"of at least {trace.min_confidence:.10g}" if trace.min_confidence <= 1 else "that none can have"
        yield f"{trace.settings.method.name} needs a probability of the answer {least}"
    for call in trace.calls:
        if call.key.prompt != "score":
            yield f"parsed answer: {call.key.name} {call.parsed!r}"
    if (selection := trace.selection) is not None:
        kept = f"{selection.kept_tokens} of {selection.scored_tokens} tokens of the thinking were kept"
        yield f"{kept}: {selection.share:.1%} of the attention in layer {selection.layer}"
    yield f"exit: {trace.exit}\nanswer: {trace.text}"


def _score(documents: TaskDocuments, trace: Trace) -> str:
    from lmms_eval_mai.harness.results import result, rounds_result  # lmms-eval is imported already here

    answered = rounds_result(trace) if documents.two_stage else result(trace, documents.own_task)
    (number,) = documents.numbers
    try:
        (metrics,) = documents.results({number: answered.text})
        shown = ", ".join(f"{name}={_shown(value)}" for name, value in metrics.items())
        return f"{shown}; the right answer is {documents.target(number)}"
    except Exception as error:  # a scorer of another task may need a service
        return f"the task's scorer failed ({error_text(error).rstrip('.')})."


def _shown(value: Any) -> str:
    """Return a metric as a short text. Many tasks of lmms-eval put it into a dict with other fields."""
    if isinstance(value, Mapping) and "score" in value:
        value = value["score"]
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
