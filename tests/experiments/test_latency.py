"""The commands of experiments/latency/README.md, on the demo pair and a few documents."""

import subprocess
import sys
from pathlib import Path

import pytest

from lmms_eval_mai.analysis.tables import seconds

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "latency"

pytestmark = pytest.mark.long  # they start vLLM


def run(script: str, output_path: Path, *options: str) -> str:
    command = [sys.executable, str(FOLDER / script), "--pair", "demo", "--output_path", str(output_path), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_calls_give_tables_1_to_4_and_a_profile_for_the_report(tmp_path: Path) -> None:
    printed = run("calls.py", tmp_path, "--repeats", "1", "--output_tokens", "4", "16")
    assert [f"## Table {number}" in printed for number in (1, 2, 3, 4)] == [True] * 4
    profile = seconds.read(str(tmp_path / "profile.json"))
    assert [Path(model).name for model in profile.models] == ["small", "large"]
    for times in profile.models.values():
        lengths = [tokens for tokens, _ in times.ttft_s]
        assert len(lengths) == 9 and lengths[1] - lengths[0] == 256 - 64 and times.seconds(128, 16) > 0


def test_table_12_times_each_method(tmp_path: Path) -> None:
    rows = ["large-r", "mai"]
    options = ["--benchmark", "shapes", "--limit", "8", "--open", "32", "--rows", *rows]
    printed = run("table_12.py", tmp_path / "out", *options)
    assert len([line for line in printed.splitlines() if line.startswith("|")]) == 2 + len(rows)
