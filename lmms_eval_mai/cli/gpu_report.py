"""How the models of a command share the GPUs of this or of another machine, for `lmms-eval-mai doctor`.

It needs no GPU and no files of the named pairs' models.
"""

import textwrap
from collections.abc import Sequence

from lmms_eval_mai.cli.gpus import Gpu, parse_gpus
from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.engines.vllm.environment import Launcher
from lmms_eval_mai.engines.vllm.gpu_memory import AUTOMATIC, GIB, USABLE, Share, shares, ways_out
from lmms_eval_mai.engines.vllm.machine_checks import MPS_HINT
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.run.config import Config

WIDTH = 110
HEADINGS = ("", "GPU", "weights GiB", "share", "KV cache GiB", "KV cache tokens", "context", "")
SOURCE = (
    "Estimates from the sizes of the models, with 3.5 GiB for each engine's images, buffers and graphs. vLLM measures "
    "the memory when it starts, and it alone decides."
)


def report(text: str, config: Config) -> int:
    """Print how the models share the GPUs of a text such as `2x48GiB`. Returns the exit code: 1 if a model does not
    fit, or if the size of one is unknown."""
    try:
        gpus = parse_gpus(text)
        lines, fits = describe(config, gpus, Launcher())
    except ArgumentError as error:
        print(textwrap.fill(str(error), WIDTH))
        return 1
    print("\n".join(lines))
    return 0 if fits else 1


def describe(config: Config, gpus: Sequence[Gpu], launcher: Launcher) -> tuple[list[str], bool]:
    """Return the lines of the report, and whether all models fit. Raises `ArgumentError`."""
    configs = [engine for engine in config.engines() if engine.engine == "vllm"]
    if not configs:
        return ["The command starts no vLLM engine."], True
    found = shares(configs, [gpu.total_bytes for gpu in gpus], launcher)
    rows = [HEADINGS, *(_row(engine, found[engine.side]) for engine in configs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    verdicts = {found[engine.side].verdict for engine in configs}
    notes = []
    if "does not fit" in verdicts:
        notes.append(f"Does not fit. {ways_out(configs)}")
    elif "tight" in verdicts:
        notes.append("Tight: vLLM chooses the longest context that fits, and the results of a run name it.")
    if "unknown" in verdicts:
        notes.append("The size of a model is unknown: it is not on this machine. Download it (`hf download`).")
    if len(configs) > 1 and set(found["small"].gpus) & set(found["large"].gpus):
        notes.append(f"The models share a GPU. {MPS_HINT}")
    used = {gpu for share in found.values() for gpu in share.gpus}
    if len(used) < len(gpus) and launcher.rank is None:
        notes.append(
            f"{len(gpus) - len(used)} of {len(gpus)} GPUs are idle. `torchrun --nproc_per_node {len(gpus)} -m "
            "lmms_eval ...` starts one pair on each GPU; large_data_parallel_size=N starts copies of the large model."
        )
    notes += [
        f"The {engine.side} model is left out, because its engine is {engine.engine}."
        for engine in config.engines()
        if engine.engine != "vllm"
    ]
    items = [textwrap.fill(note, WIDTH, initial_indent="* ", subsequent_indent="  ") for note in [*notes, SOURCE]]
    names = " + ".join(dict.fromkeys(f"{sum(gpu == one for one in gpus)} x {gpu.name}" for gpu in gpus))
    return [f"On {names}:", "", *table, "", *items], not verdicts & {"does not fit", "unknown"}


def _row(engine: EngineConfig, share: Share) -> tuple[str, ...]:
    def gib(size: int | None) -> str:
        return "?" if size is None else f"{max(0, size) / GIB:.1f}"

    given = engine.arguments.get("max_model_len")
    context = given if share.context is None else share.context
    if context in (AUTOMATIC, "auto"):
        context = "chosen by vLLM"
    return (
        f"{engine.side} {engine.model}",
        ",".join(map(str, share.gpus)),
        gib(share.weight_bytes),
        f"{USABLE if share.utilization is None else share.utilization:.0%}",
        gib(share.kv_cache_bytes),
        "?" if share.kv_cache_tokens is None else f"{share.kv_cache_tokens:,}",
        f"{context:,.0f}" if isinstance(context, int | float) else str(context or "?"),
        share.verdict,
    )
