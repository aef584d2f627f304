"""Which GPUs start which named pairs, for docs/hardware.md: computed by the code of `lmms-eval-mai doctor --gpus`."""

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # this checkout, not an installed package

from lmms_eval_mai.engines.vllm.gpu_plan import plan_or_refusal  # noqa: E402
from lmms_eval_mai.engines.vllm.placement import Launcher  # noqa: E402
from lmms_eval_mai.engines.vllm.planning.advice import Refusal  # noqa: E402
from lmms_eval_mai.engines.vllm.planning.gpus import parse_gpus  # noqa: E402
from lmms_eval_mai.engines.vllm.planning.plan import Plan  # noqa: E402
from lmms_eval_mai.engines.vllm.planning.report import numbers  # noqa: E402
from lmms_eval_mai.run import presets  # noqa: E402
from lmms_eval_mai.run.config import Config, parse  # noqa: E402

GPUS = {
    "RTX4080": "16 GB (RTX 4080)",
    "L4": "24 GB (L4)",
    "RTX4090": "24 GB (RTX 4090)",
    "RTX5090": "32 GB (RTX 5090)",
    "A100-40GB": "40 GB (A100)",
    "L40S": "48 GB (L40S)",
    "H100": "80 GB (H100)",
    "H200": "141 GB (H200)",
    "8xH100": "8 x 80 GB (H100)",
}
"""The text for `--gpus`, and the name in the table."""
PAIRS = [name for name in presets.names() if name != "demo"]


def print_tables() -> None:
    """Print one table per named pair, the default pair first."""
    for pair in sorted(PAIRS, key=lambda name: (name != presets.DEFAULT, presets.load(name)["small"][:4] != "Qwen")):
        default = ", the default pair" if pair == presets.DEFAULT else ""
        print(f"\n### `{pair}`{default}\n")
        print("| GPU | starts | context | largest image | KV cache, tokens, small / large | arguments to give |")
        print("|---|---|---:|---|---:|---|")
        for gpus, name in GPUS.items():
            print(f"| {name} | {' | '.join(_cells(gpus, parse({'pair': pair})))} |")


def _cells(gpus: str, config: Config) -> Iterator[str]:
    found = plan_or_refusal(config.engines(), parse_gpus(gpus), Launcher(), config.sleep)
    if isinstance(found, Refusal):
        changes = [_as_pair(config, one.arguments) for one in found.alternatives]
        yield from ("**no**", "", "", "", " or ".join(f"`{change}`" for change in changes) or "none: too small")
        return
    if found is None:
        raise ValueError(f"known_models.yaml lacks a model of {config.small.model} and {config.large.model}.")
    yield "yes"
    yield f"{min(engine.limits.context for engine in found.engines):,}"
    pixels = [engine.max_pixels for engine in found.engines if engine.max_pixels]
    yield f"{min(pixels) / 1e6:.1f} million pixels" if pixels else "no limit"
    yield " / ".join(f"{engine.kv_tokens:,}" for engine in found.engines)
    yield _places(found, len(parse_gpus(gpus)))


def _places(plan: Plan, gpu_count: int) -> str:
    if gpu_count == 1:
        return "none"
    small, large = (numbers(engine.request.gpus) for engine in plan.engines)
    return f"none: the models use GPUs {small} and {large}; `torchrun` uses all {gpu_count}"


def _as_pair(config: Config, arguments: str) -> str:
    """Return arguments that choose other models with the name of the pair that has these models, if there is one."""
    given = dict(argument.split("=", 1) for argument in arguments.split(","))
    models = {side: given.pop(side, getattr(config, side).model) for side in ("small", "large")}
    pairs = [name for name in PAIRS if presets.models(name) == (models["small"], models["large"])]
    if pairs and models != {"small": config.small.model, "large": config.large.model}:
        return ",".join([f"pair={pairs[0]}", *(f"{name}={value}" for name, value in given.items())])
    return arguments
