"""Answer one question about your images, and print the prompt and the answer of every call to a model.

With --dry-run, no model is loaded, and all calls of the method are shown, as if no answers agreed. For a document of a
task, give lmms-eval itself --limit 1, --offset N, --log_samples and the model argument log_prompts=true.
"""

import argparse
import asyncio
import math
from dataclasses import replace

from lmms_eval_mai.cli import log_to_terminal
from lmms_eval_mai.engines.scripted import Answer, ScriptedEngine
from lmms_eval_mai.method.calls import decoding_of
from lmms_eval_mai.method.run import run_sample
from lmms_eval_mai.method.sample import Sample, Trace
from lmms_eval_mai.run.config import Config, parse
from lmms_eval_mai.user_input import values_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--question", metavar="TEXT", required=True)
    parser.add_argument("--image", action="append", metavar="FILE", help="an image of the question; may be repeated")
    parser.add_argument("--option", action="append", metavar="TEXT", help="an answer to choose from; repeat it")
    parser.add_argument("--model_args", default="", help="the model arguments (format as in lmms-eval)")
    parser.add_argument("--gen_kwargs", default="", help="decoding arguments (format as in lmms-eval)")
    parser.add_argument("--dry-run", action="store_true", help="print only the prompts, and load no model")


def main(given: argparse.Namespace) -> None:
    from lmms_eval_mai.run.ask import Cascade, checked_question

    log_to_terminal()
    arguments = {"store": "off", **values_of("--model_args", given.model_args), "log_prompts": True}
    gen_kwargs = values_of("--gen_kwargs", given.gen_kwargs)
    config = parse(arguments)
    asked = (given.image, given.question, given.option)
    sample = checked_question(*asked, config, gen_kwargs)()
    if given.dry_run:
        _print_calls(_dry_answer(config, sample), sample, dry_run=True)
        print("Dry run: if a check passes, the calls after it are not made.")
        if config.transfer == "sparse":
            print("With a model, only the key tokens of the thinking are transferred (transfer=sparse).")
        return
    with Cascade(gen_kwargs=gen_kwargs, **arguments) as mai:
        trace = mai.ask_blocking(*asked)
    _print_calls(trace, sample, dry_run=False)
    _print_outcome(trace)


def _dry_answer(config: Config, sample: Sample) -> Trace:
    """Make all calls of the method, without a model."""
    from lmms_eval_mai.run.evaluation import attention_engine, pair_of

    if config.transfer == "sparse":
        attention_engine(config)  # refuses an engine that gives no attention weights
    never_agrees = replace(sample.benchmark, parse=lambda answer, doc: None)
    text = "<text of the {0.side} model, prompt {0.prompt}>"

    async def answer() -> Trace:
        models = {
            engine.side: ScriptedEngine(engine.side, lambda prompt: Answer(text.format(prompt.key)))
            for engine in config.engines()
        }
        for model in models.values():
            await model.start()
        return await run_sample(replace(sample, benchmark=never_agrees), pair_of(config, models, None))

    return asyncio.run(answer())


def _print_calls(trace: Trace, sample: Sample, dry_run: bool) -> None:
    for call in trace.calls:
        limit = decoding_of(sample, call.key.prompt).max_tokens
        print(f"--- {call.key.side} {call.key.prompt}, at most {limit:,} tokens")
        for message in call.messages or ():
            content = "\n".join(part.rstrip("\n") for part in message["content"])
            print(f"[{message['role']}]\n{content}")
        if not dry_run:
            logprob = call.answer_logprob
            sure = "" if logprob is None else f", probability of the answer {math.exp(logprob):.3f}"
            print(
                f"[{call.key.side} model]\n{call.text}\n{call.prompt_tokens} prompt tokens ({call.cached_tokens} "
                f"cached), {call.output_tokens} output tokens, {call.total_s:.2f} s, finish reason {call.finish_reason}"
                f"{sure}"
            )
        print()


def _print_outcome(trace: Trace) -> None:
    if trace.min_confidence is not None:
        least = f"of at least {trace.min_confidence:.10g}" if trace.min_confidence <= 1 else "that none can have"
        print(f"{trace.settings.method.name} needs a probability of the answer {least}")
    for call in trace.calls:
        if call.key.prompt != "score":
            print(f"parsed answer: {call.key.name} {call.parsed!r}")
    if (selection := trace.selection) is not None:
        kept = f"{selection.kept_tokens} of {selection.scored_tokens} tokens of the thinking were kept"
        print(f"{kept}: {selection.share:.1%} of the attention in layer {selection.layer}")
    print(f"exit: {trace.exit}\nanswer: {trace.text}")
