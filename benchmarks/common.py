"""Shared by the benchmarks: the output of figures.

Import this module first. It keeps Hugging Face offline and vLLM's log short.
"""

import datetime
import json
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")

from tabulate import tabulate


def machine() -> dict[str, Any]:
    """Describe the machine and the versions that affect the figures."""
    import torch
    import vllm  # not importlib.metadata: the CPU build's distribution has another name

    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE) if info.exists() else []
    return {
        "cpu": f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "vllm": vllm.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table with a title."""
    print(f"\n{title}\n\n{tabulate(rows, headers, tablefmt='pipe', disable_numparse=True)}")


def print_json(benchmark: str, figures: dict[str, Any]) -> None:
    """Print the figures and the machine as one line of JSON. It is the last line of a benchmark's output."""
    print(json.dumps({"benchmark": benchmark, **_rounded(figures), "machine": machine()}), flush=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return round(value, 4) if isinstance(value, float) else value
