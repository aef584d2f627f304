"""Shared by the benchmarks: a clock of the garbage collector, and the output of figures.

Import this module first. It makes `tools/` importable, keeps Hugging Face offline and vLLM's log short.
"""

import contextlib
import datetime
import gc
import io
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from pytablewriter import MarkdownTableWriter


def machine() -> dict[str, Any]:
    """Describe the machine and the versions that affect the figures."""
    import torch

    try:
        import vllm  # not importlib.metadata: the CPU build's distribution has another name
    except ImportError:
        version = None
    else:
        version = vllm.__version__
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "vllm": version,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


class GarbageClock:
    """Measures the seconds that Python spends in garbage collection inside a `with` block."""

    def __enter__(self) -> "GarbageClock":
        self.seconds = self._began = 0.0
        gc.callbacks.append(self._tick)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._tick)

    def _tick(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._began = now
        else:
            self.seconds += now - self._began


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide the progress bar and the model's final table. Both are still made, and their time counts."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table with a title."""
    writer = MarkdownTableWriter()
    writer.headers = list(headers)
    writer.value_matrix = [list(row) for row in rows]
    print(f"\n{title}\n\n{writer.dumps()}")


def print_json(benchmark: str, figures: dict[str, Any]) -> None:
    """Print the figures and the machine as one line of JSON. It is the last line of a benchmark's output."""
    print(json.dumps({"benchmark": benchmark, **_rounded(figures), "machine": machine()}), flush=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return round(value, 4) if isinstance(value, float) else value
