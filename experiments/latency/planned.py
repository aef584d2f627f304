"""What each method takes on real engines, with planned lengths, texts and exits (plan.py), and what predict.py says.

    python -m experiments.latency.planned --pair qwen3vl-2b-8b --runs 1:10 32:128 256:1024 --output_path out/planned

The seconds are real; the answers have no meaning, so models with random weights serve (`--model_args
'{"load_format": "dummy"}'`). The engines start once, only those that some method asks. An engine without work stays up:
on a CPU measure methods of one model also alone. First a minute or two measure the times of the models, one engine
after the other; --output_path gets them for predict.py. All pictures are different, and the caches are empty at each
start. Then the methods take turns, `--repeats` times, and the tables show medians and ranges. `runs.jsonl` gets each
run as it ends.
"""

import argparse
import dataclasses
import itertools
import json
import math
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import PIL.Image
import torch

from experiments.latency.calls import device_name
from experiments.latency.plan import Plan, Row, options_of, parser, plan
from experiments.latency.predict import eq_27, fastest, interpolated, seconds
from lmms_eval_mai import parse
from lmms_eval_mai.contract import PROMPTS, Call, CallKey, Image, Message, Model, Prompt, Sampling, Side, TokenLogprobs
from lmms_eval_mai.method.benchmarks import GENERIC
from lmms_eval_mai.method.calls import gather_or_cancel
from lmms_eval_mai.method.methods import MAI
from lmms_eval_mai.method.sample import Sample, Trace
from lmms_eval_mai.run.engines import Engines
from lmms_eval_mai.run.evaluation import Evaluation

DEMO = {"hf_overrides": {"text_config": {"max_position_embeddings": 8192}}, "kv_cache_memory_bytes": 2**29}
"""Arguments of the demo pair, whose own context of 2,048 tokens is too short for the thinking of MMMU."""
WORD = " red"
"""One token in most tokenizers."""
QUESTION = "What is the value of the tallest bar in the year 1990, if the bars of all other years are left out?"
LENGTHS, IMAGES, CONTEXTS, OUTPUT = (8, 64, 256, 1024, 4096), (1, 8, 32), (128, 1024), 48
"""Of the profile: tokens of prompts, images at a time, contexts of decoding, and output tokens."""


class PlannedModel:
    """A model of the pair, whose outputs get the lengths, texts and probabilities of the plan."""

    def __init__(self, model: Model, of: Plan, row: Row) -> None:
        self.model, self.plan, self.row = model, of, row
        self.count_tokens, self.truncate_thinking = model.count_tokens, model.truncate_thinking

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        key, document = prompt.key, self.plan.documents[prompt.key.doc_id]
        tokens = self.plan.output_tokens(document, key.side, key.prompt)
        call = await self.model.generate(prompt, Sampling(tokens, ignore_eos=True))
        answer = self.plan.answer(document, key.side, key.prompt)
        text = WORD * (tokens * PROMPTS[key.prompt].thinks - 4) + f" [[{answer}]]"
        sure = TokenLogprobs((text,), (0.0 if self.plan.is_sure(document, self.row) else -99.0,))
        return dataclasses.replace(call, text=text, finish_reason="stop", logprobs=sure if prompt.logprobs else None)


class Bench:
    """The engines of all methods, and the runs on them."""

    def __init__(self, given: argparse.Namespace) -> None:
        demo = DEMO if given.pair == "demo" else {}
        self.arguments = {"pair": given.pair, "store": "off", **demo, **given.model_args}
        sides = {side for row in given.methods for side in row.method.sides}
        everything = dataclasses.replace(MAI, steps=(*(ask for row in given.methods for ask in row.method.asks),))
        self.engines, self.sides = Engines(parse({**self.arguments, "method": everything})), sides
        self.width, self.height = given.px
        began = time.perf_counter()
        self.engines.run(self.engines.start())
        print(f"The engines were ready after {time.perf_counter() - began:.0f} s.", flush=True)

    def image(self, number: int) -> Image:
        rough = np.random.default_rng(number).integers(0, 255, (self.height // 8, self.width // 8, 3), np.uint8)
        return Image(PIL.Image.fromarray(rough).resize((self.width, self.height)), f"planned-{number}")

    def run(self, row: Row, of: Plan, at: int, images: Sequence[Image]) -> tuple[float, list[Trace]]:
        """Return the seconds for a document, and the traces. Raises `RuntimeError` if the calls are not as planned."""
        threshold = {"min_confidence": 0.9} if row.method.needs_threshold else {}
        config = parse({**self.arguments, "method": row.method, "max_open_samples": at, **threshold})
        evaluation = Evaluation(self.engines, config)
        models = {side: PlannedModel(model, of, row) for side, model in evaluation.pair.models.items()}
        evaluation.pair = dataclasses.replace(evaluation.pair, models=models)
        benchmark = dataclasses.replace(GENERIC, name=of.benchmark)
        sampling = dict.fromkeys(("simple", "task", "explain", "think", "transfer"), Sampling(1))

        def open_sample(number: int) -> Sample:
            question = (Message("user", (images[number], f"{QUESTION} ({number})\n")),)
            return Sample(of.benchmark, number, 0, question, {}, benchmark, "word", row.variant, False, sampling)

        keys = [(of.benchmark, number, 0) for number in range(len(of.documents))]
        self.engines.clear_caches()
        self.engines.run(evaluation.begin({}))
        began = time.perf_counter()
        traces = evaluation.answer(keys, open_sample, {}, rank=1)  # only rank 0 shows its progress
        passed = time.perf_counter() - began
        evaluation.close()
        wanted = [sum(map(len, of.calls(row, document))) for document in of.documents]
        if [len(trace.calls) for trace in traces] != wanted:
            raise RuntimeError(f"{row.title} on {of.benchmark} did not make the planned calls.")
        return passed / len(keys), traces

    def ask(
        self, side: Side, texts: Sequence[str], output: int, images: Sequence[Image] = ()
    ) -> tuple[list[Call], float, float]:
        """Make some calls at the same time. Returns them, the ms until the end of the last one, and the CPU ms of this
        process."""
        parts = [(*images[number : number + 1], text) for number, text in enumerate(texts)]
        prompts = [Prompt((Message("user", part),), CallKey("profile", 0, 0, side, "simple")) for part in parts]
        sampling, model = Sampling(output, ignore_eos=True), self.engines.models[side]
        began, worked = time.perf_counter(), time.process_time()
        calls = self.engines.run(gather_or_cancel(model.generate(prompt, sampling) for prompt in prompts))
        return calls, 1000 * (time.perf_counter() - began), 1000 * (time.process_time() - worked)

    def images(self, side: Side, count: int) -> tuple[float, float, float]:
        """Return the prompt tokens of calls with an image each, their ms without the work of this process, and the CPU
        ms of this process for preparing an image. The calls are made twice. The second time the prepared images come
        from vLLM's cache."""
        texts = [str(number) for number in range(count)]
        pictures = [self.image(time.perf_counter_ns()) for _ in range(count)]
        _, _, first_cpu_ms = self.ask(side, texts, 1, pictures)
        llm = self.engines.models[side].engine.llm  # type: ignore[attr-defined]
        self.engines.run(llm.reset_prefix_cache())
        self.engines.run(llm.reset_encoder_cache())
        calls, ms, cpu_ms = self.ask(side, texts, 1, pictures)
        return sum(call.prompt_tokens for call in calls), ms - cpu_ms, (first_cpu_ms - cpu_ms) / count

    def times(self, side: Side, batches: Sequence[int]) -> tuple[dict[str, Any], dict[str, float]]:
        """Return the times of a model, and the CPU ms of this process for a call, an image and a token."""
        prefill, encoder, decode, call_ms, image_ms, token_ms = [], [[0, 0.0]], [], [], [], []
        for tokens in LENGTHS:
            made = [self.ask(side, [f"{number} {tokens}" + WORD * tokens], 1) for number in range(5)]
            prefill.append([made[0][0][0].prompt_tokens, statistics.median(ms - cpu_ms for _, ms, cpu_ms in made)])
            call_ms += [cpu_ms for _, _, cpu_ms in made]
        call = statistics.median(call_ms)
        for count in IMAGES:
            tokens, ms, one_ms = map(statistics.median, zip(*(self.images(side, count) for _ in range(3)), strict=True))
            encoder.append([count, max(0.0, ms - interpolated(tokens, prefill))])
            image_ms.append(one_ms)
        for batch in batches:
            decode.append([float(batch)])
            for context in CONTEXTS:
                texts = [f"{number} {batch}" + WORD * (context - OUTPUT // 2) for number in range(batch)]
                self.ask(side, texts, 1)  # fills the prefix cache, so that all begin at once
                made = [self.ask(side, texts, OUTPUT) for _ in range(3)]
                paces = [(one.total_s - one.ttft_s) / (OUTPUT - 1) for calls, _, _ in made for one in calls]
                decode[-1].append(1000 * statistics.median(paces))
                token_ms += [(cpu_ms - batch * call) / batch / OUTPUT for _, _, cpu_ms in made]
        times = {"decode_ms": decode, "prefill_ms": prefill, "encoder_ms": encoder}
        image, token = (max(0.0, statistics.median(ms)) for ms in (image_ms, token_ms))
        return times, {"call": call, "image": image, "token": token}

    def profile(self, batches: Sequence[int], traces: Sequence[Trace]) -> dict[str, Any]:
        """Return the times of this machine for predict.py. `traces`: of a run, for the lengths of prompts."""
        found = {side: self.times(side, batches) for side in self.sides}
        calls = [call for trace in traces for call in trace.calls if not call.key.of]
        new = [call.prompt_tokens - call.cached_tokens for call in calls if call.cached_tokens >= call.image_tokens]
        tokens = {
            "image": statistics.median(call.image_tokens for call in calls),
            "text": statistics.median(call.prompt_tokens - call.image_tokens for call in calls),
            "later": statistics.median(new or [0]),
        }
        host_ms = {name: statistics.mean(ms[name] for _, ms in found.values()) for name in ("call", "image", "token")}
        here = {"device": device_name(), "image": f"{self.width} x {self.height} px", "contexts": CONTEXTS}
        if not torch.cuda.is_available():
            here["cores"] = len(os.sched_getaffinity(0))
        models = {side: times for side, (times, _) in found.items()}
        return here | {"tokens": tokens, "core_ms": 0.0, "host_ms": host_ms, "models": models}


def costs(traces: Sequence[Trace]) -> dict[str, float]:
    """Return what a document costs, and the times of its calls."""
    calls = [call for trace in traces for call in trace.calls]
    paces = [(call.total_s - call.ttft_s) / (call.output_tokens - 1) for call in calls if call.output_tokens > 1]
    return {
        "calls": len(calls) / len(traces),
        "prompt tokens": sum(call.prompt_tokens for call in calls) / len(traces),
        "cached": sum(call.cached_tokens for call in calls) / len(traces),
        "images encoded": sum(call.cached_tokens < call.image_tokens for call in calls) / len(traces),
        "output tokens": sum(call.output_tokens for call in calls) / len(traces),
        "TTFT, ms": 1000 * statistics.median(call.ttft_s for call in calls),
        "ms a token": 1000 * statistics.median(paces or [math.nan]),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--pair", default="qwen3vl-2b-8b", help="a named pair, or the path of a YAML file")
    options.add_argument("--model_args", type=json.loads, default={}, help='such as {"load_format": "dummy"}')
    runs = "questions at a time:documents, for each number at a time"
    options.add_argument("--runs", nargs="+", type=lambda text: [*map(int, text.split(":"))], help=runs)
    options.set_defaults(runs=[[1, 10], [32, 128], [256, 1024]])
    options.add_argument("--px", nargs=2, type=int, default=[720, 720], help="width and height of a picture")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--output_path", type=Path, default=Path("out/planned"))
    given = options_of(options)
    bench = Bench(given)
    images = [bench.image(number) for number in range(max(4, *(documents for _, documents in given.runs)))]
    short = plan(given.benchmarks[0], 4, given)
    warm_up = [trace for row in given.methods for trace in bench.run(row, short, 4, images)[1]]
    record = bench.profile(sorted({1, 8, *(at for at, _ in given.runs)}), warm_up)
    given.output_path.mkdir(parents=True, exist_ok=True)
    (given.output_path / "machine.json").write_text(json.dumps(record, indent=1) + "\n")
    (given.output_path / "runs.jsonl").unlink(missing_ok=True)
    found: dict[tuple[int, str, str], list[float]] = {}
    lines = {}
    for _ in range(given.repeats):
        for benchmark, (at, documents) in itertools.product(given.benchmarks, given.runs):
            made = plan(benchmark, documents, given)
            for row in given.methods:
                passed, traces = bench.run(row, made, at, images)
                key = at, benchmark, row.title
                found.setdefault(key, []).append(passed)
                spent = costs(traces)
                if key not in lines:
                    predicted = {"predicted": seconds(record, made, row, at), "Eq. 27": eq_27(record, made, row)}
                    lines[key] = predicted | spent
                print(f"{benchmark}, {at} at a time, {row.title}: {passed:.3f} s", flush=True)
                with (given.output_path / "runs.jsonl").open("a") as file:
                    file.write(json.dumps([*key, passed, spent]) + "\n")
    bench.engines.stop()
    show(found, lines, given)


def show(
    found: dict[tuple[int, str, str], list[float]], lines: dict[Any, dict[str, float]], given: argparse.Namespace
) -> None:
    """Print what each method cost, the ratios to the first method, measured and predicted, and all as JSON."""
    index = ["at a time", "benchmark", "method"]
    table = pd.DataFrame(lines).T.rename_axis(index)
    table.insert(0, "s a document", {key: statistics.median(seconds) for key, seconds in found.items()})
    table.insert(1, "range", {key: f"{min(seconds):.3f}-{max(seconds):.3f}" for key, seconds in found.items()})
    print(f"\n{table.reset_index().to_markdown(index=False, floatfmt='.3f')}")
    times, figures = {}, {}
    for name in ("s a document", "predicted", "Eq. 27"):
        times[name] = table[name].astype(float).unstack("method")[[row.title for row in given.methods]]
        first = times[name].columns[0]
        ratios = times[name].div(times[name][first], axis=0).drop(columns=first).reset_index()
        print(f"\n{name}, by that of {first}\n\n{ratios.to_markdown(index=False, floatfmt='.2f')}")
        figures[name] = {f"{on}, {at}": row.to_dict() for (at, on), row in times[name].iterrows()}
    error = (times["predicted"] / times["s a document"] - 1).abs().stack()
    named = zip(fastest(times["predicted"], given.methods), fastest(times["s a document"], given.methods), strict=True)
    right = [predicted[0] in measured for predicted, measured in named]
    checks = {
        "fastest_right": f"{sum(right)} of {len(right)}",
        "error": float(error.median()),
        "errors_to_20%": float((error < 0.2).mean()),
    }
    print(
        f"\nPredicted for this machine: the fastest method in {checks['fastest_right']} cells; median error "
        f"{checks['error']:.0%}; within 20%: {checks['errors_to_20%']:.0%}. Times and runs: {given.output_path}"
    )
    print(json.dumps({"device": device_name(), "runs": given.runs, "repeats": given.repeats, **checks, **figures}))


if __name__ == "__main__":
    main()
