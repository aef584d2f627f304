"""lmms-eval as a user runs it: a child process, and the samples that it logged."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil


def lmms_eval(
    folder: Path, tasks: list[str], output: Path, model_args: str, limit: int, *more: str, model: str = "mai_cascade"
) -> str:
    """Run it in `folder` to the end; -> all it printed. No process of its own is left behind."""
    command = [str(Path(sys.executable).parent / "lmms-eval"), "--model", model, "--model_args", model_args]
    command += ["--tasks", ",".join(tasks), "--limit", str(limit), "--output_path", str(output), "--log_samples", *more]
    done = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "MAI_TEST": str(output)},
    )
    text = done.communicate()[0].decode(errors="replace")
    left = [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("MAI_TEST") == str(output)]
    assert left == []
    return text


def read_samples(output: Path, task: str) -> list[dict[str, Any]]:
    (file,) = output.rglob(f"*_samples_{task}.jsonl")
    # Not splitlines(): random text holds U+2028 and the like.
    return [json.loads(line) for line in file.read_text().split("\n") if line]
