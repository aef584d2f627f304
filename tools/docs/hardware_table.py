"""Which GPUs hold which named pairs, for docs/hardware.md: computed by the code of `lmms-eval-mai doctor --gpus`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # this checkout, not an installed package

from lmms_eval_mai.cli.gpus import parse_gpus  # noqa: E402
from lmms_eval_mai.engines.vllm.environment import Launcher  # noqa: E402
from lmms_eval_mai.engines.vllm.gpu_memory import shares  # noqa: E402
from lmms_eval_mai.run import presets  # noqa: E402
from lmms_eval_mai.run.config import parse  # noqa: E402

GPUS = {
    "L4": "24 GB (L4)",
    "RTX5090": "32 GB (RTX 5090)",
    "A100-40GB": "40 GB (A100)",
    "L40S": "48 GB (L40S)",
    "H100": "80 GB (H100)",
    "2xL4": "2 x 24 GB (L4)",
    "2xL40S": "2 x 48 GB (L40S)",
}
"""The text for `--gpus`, and the name in the table."""
ORDER = ("does not fit", "tight", "fits")
"""The verdicts, the worst first."""


def print_table() -> None:
    """Print one row per named pair: the worse verdict of its two models, without and with `quantization=fp8`."""
    print(f"| pair | {' | '.join(GPUS.values())} |")
    print(f"|---|{'---|' * len(GPUS)}")
    for pair in presets.names():
        if pair != "demo":
            print(f"| `{pair}` | {' | '.join(_cell(pair, gpus) for gpus in GPUS)} |")


def _cell(pair: str, gpus: str) -> str:
    plain, fp8 = _verdict(pair, gpus), _verdict(pair, gpus, quantization="fp8")
    return plain if ORDER.index(fp8) <= ORDER.index(plain) else f"{plain}; fp8: {fp8}"


def _verdict(pair: str, gpus: str, **arguments: str) -> str:
    config = parse({"pair": pair, **arguments})
    totals = [gpu.total_bytes for gpu in parse_gpus(gpus)]
    found = shares(config.engines(), totals, Launcher()).values()
    return min((share.verdict for share in found), key=ORDER.index)
