"""The commands of experiments/latency/README.md, on the demo pair and a few documents."""

import subprocess
import sys
from pathlib import Path

import pytest

from lmms_eval_mai.analysis.tables import seconds

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.long  # they start vLLM


def run(script: str, output_path: Path, *options: str) -> str:
    command = [sys.executable, "-m", f"experiments.latency.{script}", "--pair", "demo"]
    command += ["--output_path", str(output_path), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_calls_give_tables_1_to_4_and_a_profile_for_the_report(tmp_path: Path) -> None:
    printed = run("calls", tmp_path, "--repeats", "1", "--output_tokens", "4", "16")
    assert [f"## Table {number}" in printed for number in (1, 2, 3, 4)] == [True] * 4
    profile = seconds.read(str(tmp_path / "profile.json"))
    assert [Path(model).name for model in profile.models] == ["small", "large"]
    for times in profile.models.values():
        lengths = [tokens for tokens, _ in times.ttft_s]
        assert len(lengths) == 9 and lengths[1] - lengths[0] == 256 - 64 and times.seconds(128, 16) > 0


def table_12(folder: Path, open: int, *rows: str) -> list[dict[str, str]]:
    """Return the rows of the printed table."""
    options = ["--benchmark", "shapes", "--limit", "4", "--open", str(open), "--rows", *rows]
    printed = run("table_12", folder / "out", *options)
    names, _, *lines = [line.strip("|").split("|") for line in printed.splitlines() if line.startswith("|")]
    return [dict(zip(map(str.strip, names), map(str.strip, line), strict=True)) for line in lines]


def test_table_12_times_each_method(tmp_path: Path) -> None:
    assert len(table_12(tmp_path, 32, "large-r", "mai")) == 2


def test_table_12_counts_drafts_which_change_no_answer_and_save_forward_passes(tmp_path: Path) -> None:
    alone, assisted = table_12(tmp_path, 1, "hf", "hf-assisted")
    assert alone["score %"] == assisted["score %"] and float(assisted["samples"]) == 4
    assert float(assisted["forward passes"]) < float(alone["forward passes"])
    assert 0 < float(assisted["accepted drafts %"]) < 100
