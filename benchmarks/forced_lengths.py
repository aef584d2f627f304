"""Output folders with the paper's numbers of output tokens, for `lmms-eval-mai estimate`.

Scripted engines answer as many documents as the paper has, with the average output tokens of Table 5 (2B and 8B of
Qwen3-VL) and the exits of Table 10. The cascade makes the calls, so the traces are those of a run. No model, image or
data set is needed:

    python benchmarks/forced_lengths.py out                    # six benchmarks; Full RT, MAI, large R and small R
    lmms-eval-mai estimate out --profile paper --small 2B --large 8B

With `--of_bench N`, documents and lengths are those of `lmms-eval-mai bench --lengths --samples N`.

The paper gives averages only. The lengths of thinking are from a log-normal distribution with sigma 0.35, and the short
answers differ by one token; the averages are those of Table 5. The paper does not give the lengths of the prompts. Each
prompt has 320 tokens, as an image of 512 x 512 pixels with 64 query tokens (Table 3), and the transfer has the thinking
too.
"""

import argparse
import asyncio
import dataclasses
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image as PilImage

from lmms_eval_mai.bench.lengths import NAMES, SEED, SIGMA, make_plan, spread
from lmms_eval_mai.contract import SIDES, Image, Message, Prompt, Sampling, Side
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.harness.results import TraceCounts
from lmms_eval_mai.paper.benchmarks import GENERIC
from lmms_eval_mai.paper.cascade import MODES
from lmms_eval_mai.paper.sample import EXITS, Exit, Sample
from lmms_eval_mai.paper.sample_run import Pair
from lmms_eval_mai.reports import paper_numbers

PROMPT_TOKENS = 320
IMAGE_TOKENS = 256
STAGES = ("short", "think", "transfer")
IMAGE = Image(PilImage.new("RGB", (1, 1)), "image")


class Lengths:
    """The output tokens and the answers of all calls of a benchmark."""

    def __init__(self, benchmark: str, names: Mapping[Side, str] = NAMES) -> None:
        self.documents = paper_numbers.documents(benchmark) or 0
        dice = random.Random(f"{SEED} {benchmark}")
        self.exits = _exits(benchmark, self.documents, dice)
        means = {side: paper_numbers.table(5)["rows"][name][benchmark] for side, name in names.items()}
        weights = [dice.lognormvariate(0, SIGMA) for _ in range(self.documents)]
        self.short = {side: spread([1.0] * self.documents, means[side][0], least=0) for side in SIDES}
        self.think = {side: spread(weights, means[side][2], least=0) for side in SIDES}

    @classmethod
    def of_bench(cls, benchmark: str, documents: int) -> "Lengths":
        """Return the lengths and exits that `lmms-eval-mai bench` forces on so many documents: thinking is longer where
        the short answers disagree."""
        found, plan = cls(benchmark), make_plan(benchmark, documents)
        found.documents, found.exits = documents, list(plan.exits)
        found.short, found.think = (
            {side: [plan.steps[number, side, stage].tokens for number in range(documents)] for side in SIDES}
            for stage in ("short", "think")
        )
        return found

    def script(self, side: Side, mode: str) -> Callable[[Prompt], Answer]:
        """Return the script of one engine. In the cascade, the second call of a sample to an engine finds the image in
        the cache."""

        def answer(prompt: Prompt) -> Answer:
            doc_id, stage = prompt.key.doc_id, prompt.key.stage
            tokens = (self.think if stage == "think" else self.short)[side][doc_id]
            transferred = self.think["small"][doc_id] if stage == "transfer" else 0
            text = "2" if side == "small" and not self._agrees(doc_id, stage) else "1"
            text = f"Thinking. [[{text}]]" if stage == "think" else f"[[{text}]]"
            cached = IMAGE_TOKENS if mode == "cascade" and stage != "short" else 0
            return Answer(text, "stop", PROMPT_TOKENS + transferred, cached_tokens=cached, output_tokens=tokens)

        return answer

    def _agrees(self, doc_id: int, stage: str) -> bool:
        exit = self.exits[doc_id]
        return exit == "agree_short" or (exit == "agree_think" and stage == "think")


def _exits(benchmark: str, documents: int, dice: random.Random) -> list[Exit]:
    """Return the exits of Table 10 in random order. Its exits of MMBench are one document short."""
    counts = paper_numbers.table(10)["rows"][benchmark]["exits"]
    exits = [exit for exit, count in zip(EXITS["cascade"], counts, strict=True) for _ in range(count)]
    exits += ["agree_short"] * (documents - len(exits))
    dice.shuffle(exits)
    return exits


async def lines(benchmark: str, lengths: Lengths, mode: str) -> list[dict[str, Any]]:
    """Run the mode on all documents. Returns the lines of the samples file."""
    small, large = (ScriptedEngine(side, lengths.script(side, mode), ScriptedOptions(time_scale=0)) for side in SIDES)
    await small.start()
    await large.start()
    found = []
    for doc_id in range(lengths.documents):
        trace = await MODES[mode](sample(benchmark, doc_id), Pair(small, large))
        line = {"doc_id": doc_id, "target": "1", "filtered_resps": trace.text, "input": "", "score": 1.0}
        found.append({**line, "token_counts": [TraceCounts.of(trace).to_dict()]})
    return found


def sample(benchmark: str, doc_id: int, repeat: int = 0) -> Sample:
    """Return an open sample."""
    return Sample(
        task=f"{benchmark}_r",
        doc_id=doc_id,
        repeat=repeat,
        question=(Message("user", (IMAGE, "Question?")),),
        doc={},
        benchmark=dataclasses.replace(GENERIC, name=benchmark),  # its rule is equality of texts
        kind="word",
        variant="R",
        two_stage=False,
        sampling={stage: Sampling(max_tokens=4096) for stage in STAGES},  # type: ignore[misc]
    )


def write(folder: Path, benchmark: str, mode: str, found: Sequence[dict[str, Any]]) -> None:
    """Write the files of a run, as lmms-eval and mai_cascade do."""
    task, number = f"{benchmark}_r", len(found)
    mai = {"benchmark": benchmark, "variant": "r"}
    results = {
        "results": {task: {"alias": task}},
        "configs": {task: {"task": task, "metadata": {"mai": mai}}},
        "n-samples": {task: {"original": number, "effective": number}},
        "config": {"model": "mai_cascade", "model_args": f"mode={mode}", "gen_kwargs": ""},
    }
    engines = {side: {"engine": "scripted", "model": f"{NAMES[side]}.jsonl"} for side in SIDES}
    figures = {"format": 1, "mode": mode, "engines": engines, "tasks": {task: {"samples": number}}}
    path = folder / benchmark / mode
    path.mkdir(parents=True, exist_ok=True)
    (path / "0_results.json").write_text(json.dumps(results))
    (path / "0_mai_cascade.json").write_text(json.dumps(figures))
    (path / f"0_samples_{task}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in found))


def write_all(folder: Path, benchmarks: Sequence[str], modes: Sequence[str], of_bench: int | None = None) -> None:
    """Write one run for each benchmark and mode. `of_bench`: documents of a bench whose lengths are taken."""
    for benchmark in benchmarks:
        lengths = Lengths(benchmark) if of_bench is None else Lengths.of_bench(benchmark, of_bench)
        for mode in modes:
            write(folder, benchmark, mode, asyncio.run(lines(benchmark, lengths, mode)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--benchmarks", nargs="+", default=list(paper_numbers.load()["benchmarks"]))
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=["transfer", "cascade", "large", "small"])
    parser.add_argument("--of_bench", type=int, metavar="N", help="the N documents of lmms-eval-mai bench --samples N")
    given = parser.parse_args()
    write_all(given.folder, given.benchmarks, given.modes, given.of_bench)


if __name__ == "__main__":
    main()
