"""vLLM's log: hidden by default, complete on request, and part of the error if an engine does not start."""

import asyncio
import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.engine_cores import fork_cores

from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.vllm import logs
from lmms_eval_mai.engines.vllm.placement import ChildEnvironment
from lmms_eval_mai.errors import EngineStartError
from lmms_eval_mai.run.config import parse


def test_log_of_an_engine_that_does_not_start_is_part_of_the_error(
    tiny_pair: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fork_cores()
    broken = shutil.copytree(tiny_pair[0], tmp_path / "broken")
    weights = next(broken.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:1000])
    engine = build(parse({"mode": "small", "small": str(broken), "engine": "vllm"}).small)

    async def start() -> None:
        try:
            await engine.start()
        finally:
            await engine.close()

    with pytest.raises(EngineStartError) as raised:
        asyncio.run(start())
    first_line, _, log = str(raised.value).partition("\n")
    assert first_line.startswith(f"vLLM cannot start small={broken}: ") and "Engine core init" not in first_line
    assert "SafetensorError" in first_line and "invalid header" in first_line
    assert log.startswith("The end of its log:\n") and "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.slow
def test_spawned_process_hides_harmless_warnings_before_it_imports_vllm(capfd: pytest.CaptureFixture[str]) -> None:
    from vllm.triton_utils import importing

    capfd.readouterr()
    for hide, shown in ((None, 1), (logs.hide_harmless_warnings, 0)):
        with ChildEnvironment({}, first_call=hide):
            # A module of vLLM is the target, as in an engine's process: it is imported with the target.
            process = multiprocessing.get_context("spawn").Process(target=importing.TritonPlaceholder)
            process.start()
        process.join()
        assert process.exitcode == 0 and capfd.readouterr().err.count("doesn't include CPU backend") == shown


ENGINE_PROCESS = """
import logging, os
from lmms_eval_mai.engines.vllm.logs import start_log_handler
logger = logging.getLogger("vllm")
logger.setLevel("INFO")
logger.addHandler(start_log_handler())
logger.info("starting")
input()
logger.info("running")
logger.info("running")
later = logging.getLogger("vllm.later")
later.addHandler(start_log_handler())
later.info("running")
os._exit(0)
"""
"""Logs like a process of an engine. A line on its standard input tells that the engine is ready."""


def test_engine_that_is_ready_does_not_write_into_the_removed_log_of_its_start() -> None:
    log = logs.StartLog("small")
    environment = {**os.environ, **log.environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", ENGINE_PROCESS]
    engine = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, text=True)
    with Path(log.path).open() as file:
        while not log.text():
            assert engine.poll() is None
            time.sleep(0.02)
        log.remove()
        engine.communicate("ready\n")
        assert engine.returncode == 0
        assert file.read().splitlines() == ["starting"]
    assert not Path(log.path).exists()


@pytest.mark.parametrize(
    ("name", "level", "message", "shown"),
    [
        ("vllm.platforms.cpu", logging.WARNING, "Triton is not installed. triton-cpu is expected on x86 CPUs.", False),
        # The tests run vLLM's build for the CPU.
        ("vllm.utils.torch_utils", logging.WARNING, "OMP_NUM_THREADS=2 is set; leaving Torch threads at 2 for.", False),
        ("vllm.utils.torch_utils", logging.WARNING, "OMP_NUM_THREADS is invalid; defaulting Torch threads.", True),
        ("vllm.v1.engine.core", logging.ERROR, "EngineCore failed to start.", False),  # our error message repeats it
        ("vllm.v1.engine.core", logging.ERROR, "EngineCore encountered a fatal error.", True),
        ("vllm.config", logging.WARNING, "The KV cache is nearly full.", True),
    ],
)
def test_only_known_harmless_warnings_are_hidden(name: str, level: int, message: str, shown: bool) -> None:
    record = logging.LogRecord(name, level, "file.py", 1, message, None, None)
    assert logs.HideRepeatedOrHarmless().filter(record) is shown


@pytest.mark.parametrize(
    ("variable", "value", "arguments", "quiet"),
    [
        ("VERBOSITY", "INFO", (), True),
        ("VERBOSITY", "DEBUG", (), False),
        ("VLLM_LOGGING_LEVEL", "INFO", (), False),
        ("VLLM_LOGGING_CONFIG_PATH", "log.json", (), False),
        ("VERBOSITY", "INFO", ("dtype", "log_level"), False),
    ],
)
def test_log_is_complete_if_the_user_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, arguments: tuple[str, ...], quiet: bool
) -> None:
    for name in ("VERBOSITY", *logs.USER_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    assert logs.is_quiet(arguments) is quiet
