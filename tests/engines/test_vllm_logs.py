"""vLLM's log: warnings and errors by default, complete on request, and part of the error if a start fails."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.engine_cores import fork_cores
from support.engines import engine_of, started

from lmms_eval_mai.errors import EngineStartError
from lmms_eval_mai.run.event_loop import LoopThread


def test_log_of_an_engine_that_does_not_start_is_part_of_the_error(
    tiny_pair: tuple[Path, Path], tmp_path: Path, loop: LoopThread
) -> None:
    fork_cores()
    broken = shutil.copytree(tiny_pair[0], tmp_path / "broken")
    weights = next(broken.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(EngineStartError) as raised, started(engine_of(small=str(broken), engine="vllm"), loop):
        pass
    first_line, _, log = str(raised.value).partition("\n")
    assert first_line.startswith(f"vLLM cannot start small={broken}: ") and "Engine core init" not in first_line
    assert "SafetensorError" in first_line and "invalid header" in first_line
    assert log.startswith("The end of its log:\n")


PLATFORM = """
import logging, os
from lmms_eval_mai.engines.vllm import environment
environment.detect_platform()
import vllm.config
print(os.environ.get("VLLM_LOGGING_LEVEL"), environment.shows_log())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, "ERROR False"),  # on a CPU, vLLM's warnings are about our own defaults
        ({"VERBOSITY": "DEBUG"}, "None True"),
        ({"VLLM_LOGGING_LEVEL": "INFO"}, "INFO True"),
    ],
)
def test_log_is_complete_if_the_user_asks_for_it(own: dict[str, str], expected: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_LOG", "VERBOSITY"))}
    command = [sys.executable, "-c", PLATFORM]
    ended = subprocess.run(command, env={**clean, **own}, capture_output=True, text=True, check=True)
    assert ended.stdout.strip().splitlines()[-1] == expected
