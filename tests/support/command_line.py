"""Runs lmms-eval as a user does, and reads the samples that it logged."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import psutil


def lmms_eval(folder: Path, *arguments: str) -> str:
    """Run it in `folder` to the end, in a new process; returns all it printed. Fails if it leaves a process."""
    mark = str(uuid.uuid4())
    command = [str(Path(sys.executable).parent / "lmms-eval"), *arguments]
    done = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "MAI_TEST": mark},
    )
    text = done.communicate()[0].decode(errors="replace")
    left = [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("MAI_TEST") == mark]
    assert left == []
    return text


def read_samples(output: Path, task: str) -> list[dict[str, Any]]:
    (file,) = output.rglob(f"*_samples_{task}.jsonl")
    # Not splitlines(): random text holds U+2028 and the like.
    return [json.loads(line) for line in file.read_text().split("\n") if line]
