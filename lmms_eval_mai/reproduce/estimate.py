"""How many calls the runs of a plan make, and an estimate of their time and disk space, for `--dry-run`."""

from collections.abc import Iterator, Sequence

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.engines.checkpoints import weight_bytes
from lmms_eval_mai.method.methods import IN_TWO_STAGES, VARIANT_OF, prompt_of
from lmms_eval_mai.method.prompts import VARIANTS
from lmms_eval_mai.reports.paper_numbers import family, number
from lmms_eval_mai.reproduce.plan import Run, Subject

IN_FLIGHT = 32
FAST, SLOW = IN_FLIGHT * 47.26, 656.0
"""Output tokens per second of 32 calls at a time. Fast: each call has the speed of one call of the 8B model (Table 4).
Slow: 2,500 answers of 294.3 tokens (Table 5) in 1,122 s, the start of the engine included (8B-R on vLLM, Table 12)."""
RESULTS_BYTES = 2_000
"""Bytes in the results and in the call store for each call of a run, without its text. The demo pair, whose questions
are short, has 1,200."""
TEXT_BYTES = 10
"""Bytes for each output token: its text is in the results and in the call store."""
Call = tuple[str, str, str]
"""Model or models, benchmark, and prompt: runs with the same call share it."""


def calls(run: Run) -> Iterator[Call]:
    """Yield the calls of a document. A method with stops makes the later ones only for some documents."""
    variant, two_stage = VARIANTS[run.kind.suffix]
    method, config, task = run.kind.method, run.models.config, run.subject.name
    for ask in method.asks:
        prompt = prompt_of(ask, variant, config.think)
        models = str(getattr(config, ask.side).model)
        if prompt == "transfer":
            models = f"{getattr(config, ask.of.partition('.')[0]).model} {models}"
        yield models, task, VARIANT_OF.get(prompt, prompt)
        if two_stage and prompt in IN_TWO_STAGES and method.is_answer_used(ask):
            yield models, task, f"{VARIANT_OF[prompt]}(S2)"


def tokens(call: Call) -> float | None:
    """Return the output tokens of a call in the paper, on average. None: the paper does not have them. The short
    answers of Stage 2 and of the transfer count as those of S."""
    models, benchmark, prompt = call
    known = family(models.split()[-1])
    if known is None or prompt == "native":
        return None
    table = 5 if known[0] == "Qwen3-VL" else 13
    return number(table, known[1], benchmark, prompt if prompt in ("E", "R") else "S")


def estimate(runs: Sequence[Run]) -> str:
    """Return the calls, the hours and the disk space of all runs, and what is assumed."""
    subjects: dict[str, Subject] = {run.subject.name: run.subject for run in runs}
    each = [call for run in runs for call in calls(run)]
    made = dict.fromkeys(each)
    numbers = {call: subjects[call[1]].documents for call in made}
    in_all = sum(numbers[call] for call in each)
    lines = [
        f"{len(runs)} runs with at most {in_all:,} calls. At most {sum(numbers.values()):,} of them are made, and the "
        "others are shared."
    ]
    lengths = {call: tokens(call) for call in made}
    if None in lengths.values():
        lines.append("The paper has no output tokens of some of these models and tasks, so the time is not estimated.")
    else:
        total = sum(numbers[call] * (length or 0) for call, length in lengths.items())
        lines.append(
            f"Time: {total / FAST / 3600:.1f} to {total / SLOW / 3600:.1f} hours of decoding on one H100 with "
            f"{IN_FLIGHT} calls at a time. This is an estimate from the paper, not a measurement: {total / 1e6:.1f} "
            f"million output tokens (Tables 5 and 13) at {FAST:,.0f} tokens/s ({IN_FLIGHT} times the speed of one call "
            f"of 8B, Table 4) or {SLOW:,.0f} (8B-R on vLLM, Table 12). Downloads, starts and prefills are not included."
        )
        results = in_all * RESULTS_BYTES + total * TEXT_BYTES
        lines.append(f"Disk: about {results / 1e9:.1f} GB of results, {_weights(runs)}, and the data sets.")
    return "\n".join(lines)


def _weights(runs: Sequence[Run]) -> str:
    names = {str(getattr(run.models.config, side).model) for run in runs for side in SIDES}
    sizes = [weight_bytes(name) for name in names]
    if None in sizes:
        return f"the weights of {len(names)} models (the Hugging Face hub does not answer)"
    return f"{sum(size or 0 for size in sizes) / 1e9:.0f} GB of weights"
