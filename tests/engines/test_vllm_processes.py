"""The processes of vLLM's engines: they start, crash and end, and none is left behind."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from support.engines import Running, question, vllm_engine

from lmms_eval_mai.contract import Call, Sampling
from lmms_eval_mai.engines.restart import RestartingEngine
from lmms_eval_mai.engines.vllm.internals import CORES
from lmms_eval_mai.engines.vllm.starting import Started, without_interrupts
from lmms_eval_mai.errors import EngineCrashed, EngineNotRunning, EngineStartError

CORE = CORES[0]
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def runs(process: psutil.Process) -> bool:
    """Return whether a process runs and is not the resource tracker of multiprocessing."""
    with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
        return process.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(process.cmdline())
    return False


def children(before: frozenset[int] = frozenset()) -> list[psutil.Process]:
    """Return the running processes that this process started, except those in `before`."""
    found = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    return [child for child in found if runs(child)]


def new_cores(before: frozenset[int]) -> list[BaseProcess]:
    return [child for child in multiprocessing.active_children() if child.name == CORE and child.pid not in before]


@pytest.fixture
def before(vllm: Running) -> frozenset[int]:
    return frozenset(child.pid for child in children())


@pytest.fixture
def users_process() -> Iterator[list[subprocess.Popen[bytes]]]:
    """A place for a process that the user starts while an engine starts."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_aborted_start_leaves_no_process_and_spares_the_users_processes(
    vllm: Running,
    tiny_pair: tuple[Path, Path],
    before: frozenset[int],
    users_process: list[subprocess.Popen[bytes]],
) -> None:
    engine = vllm_engine(tiny_pair, "large")

    async def abort() -> None:
        starting = asyncio.ensure_future(engine.start())
        while not new_cores(before):
            assert not starting.done(), starting
            await asyncio.sleep(0.05)
        users_process.append(subprocess.Popen(SLEEP))  # noqa: ASYNC220 - returns at once
        starting.cancel()
        await engine.close()

    vllm.loop.run(abort())
    (bystander,) = users_process
    assert [child.pid for child in children(before)] == [bystander.pid]
    assert bystander.poll() is None


def test_killed_engine_fails_every_call_in_flight_and_can_be_restarted(
    vllm: Running, tiny_pair: tuple[Path, Path], before: frozenset[int]
) -> None:
    engine = vllm_engine(tiny_pair, "large")
    vllm.loop.run(engine.start())
    processes = children(before)

    def long_calls() -> list[asyncio.Task[Call]]:
        long = Sampling(max_tokens=3000, ignore_eos=True)
        return [asyncio.ensure_future(engine.generate(question(number), long)) for number in range(4)]

    async def kill_in_flight() -> list[Any]:
        calls = long_calls()
        await asyncio.sleep(0.5)
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended with the one before it
                process.kill()
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)

    errors = vllm.loop.run(kill_in_flight())
    assert processes and all(isinstance(error, EngineCrashed) for error in errors), errors
    assert "large" in str(errors[0]) and str(tiny_pair[1]) in str(errors[0])
    (call,) = vllm.generate(question(0))
    assert isinstance(call, Call)
    restarted = Running(RestartingEngine(engine, restarts=1), vllm.loop)
    answers = restarted.generate(*(question(number) for number in range(4)))
    assert [type(call) for call in answers] == [Call] * 4, answers

    async def close_in_flight() -> list[Any]:
        """As a restart does, if it begins before all calls have noticed the crash."""
        calls = long_calls()
        while engine.started.llm.output_processor.get_num_unfinished_requests() < len(calls):
            assert not any(call.done() for call in calls), calls
            await asyncio.sleep(0.01)
        await engine.close()
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)

    errors = vllm.loop.run(close_in_flight())
    assert [type(error) for error in errors] == [EngineNotRunning] * 4, errors
    assert children(before) == []


def test_engine_that_is_killed_before_it_reads_its_first_calls_fails_them(
    vllm: Running, tiny_pair: tuple[Path, Path], before: frozenset[int]
) -> None:
    engine = vllm_engine(tiny_pair, "large")
    vllm.loop.run(engine.start())
    cores = new_cores(before)

    async def kill_before_the_first_answer() -> list[Any]:
        for core in cores:
            os.kill(core.pid or 0, signal.SIGSTOP)
        calls = [asyncio.ensure_future(engine.generate(question(number), Sampling(max_tokens=4))) for number in (1, 2)]
        await asyncio.sleep(0.5)
        for core in cores:
            os.kill(core.pid or 0, signal.SIGKILL)
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)

    errors = vllm.loop.run(kill_before_the_first_answer())
    assert [type(error) for error in errors] == [EngineCrashed, EngineCrashed], errors
    assert not engine.is_up()
    with pytest.raises(EngineCrashed, match="failed to clear its caches"):
        vllm.loop.run(engine.clear_caches())
    vllm.loop.run(engine.close())
    assert children(before) == []


def test_engine_that_crashes_before_its_first_reply_has_failed_to_start(
    vllm: Running, tiny_pair: tuple[Path, Path], before: frozenset[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.exceptions import EngineDeadError

    async def crash(llm: AsyncLLM) -> None:
        raise EngineDeadError

    monkeypatch.setattr(AsyncLLM, "get_supported_tasks", crash)  # the first request to the core
    with pytest.raises(EngineStartError, match=r"The large engine .* crashed after its start\."):
        vllm.loop.run(vllm_engine(tiny_pair, "large").start())
    assert children(before) == []


def hold_memory(ready: Any) -> None:
    memory = bytearray(os.urandom(1 << 20)) * 400  # freed in some 50 ms, so the end of a killed process takes that long
    ready.send(len(memory))
    signal.pause()


def test_stop_of_an_engine_waits_for_the_end_of_a_killed_process() -> None:
    fork = multiprocessing.get_context("fork")
    received, ready = fork.Pipe()
    core = fork.Process(target=hold_memory, args=(ready,), name=CORE)
    core.start()
    received.recv()
    process = psutil.Process(core.pid)
    mark = Path(f"/dev/shm/__KMP_REGISTERED_LIB_{core.pid}_{os.getuid()}")  # of Intel's OpenMP
    mark.touch()
    killer: Any = SimpleNamespace(shutdown=lambda timeout: core.kill())  # like vLLM, without a wait
    Started(killer, None, frozenset({process})).stop()  # type: ignore[arg-type]  # no renderer
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert core.exitcode == -signal.SIGKILL and not mark.exists()


STARTER = """
import asyncio, multiprocessing, sys, time
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.run.config import parse

if __name__ == "__main__":
    config = parse({"mode": "small", "small": sys.argv[1], "engine": "vllm", "data_parallel_size": 2})
    engine = build(config.small)
    asyncio.run(engine.start())
    from lmms_eval_mai.engines.vllm.environment import log_folder
    print(log_folder(), *(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_processes_of_an_engine_with_replicas_end_with_a_killed_starter_and_leave_no_log(
    tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    script = tmp_path / "starter.py"
    script.write_text(STARTER)
    command = [sys.executable, str(script), str(tiny_pair[0])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        try:
            assert starter.stdout is not None
            folder, *pids = starter.stdout.readline().split()
            processes = [psutil.Process(int(pid)) for pid in pids]
            below = [below for process in processes for below in process.children(recursive=True)]
            assert len(processes) == 3 and list(Path(folder).iterdir())  # two cores and their coordinator
        finally:
            starter.kill()
    _, alive = psutil.wait_procs([*processes, *below], timeout=15)
    assert alive == [] and not Path(folder).exists()


def test_process_of_an_engine_ignores_ctrl_c() -> None:
    with without_interrupts():
        process = psutil.Popen(SLEEP)
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
        (blocked,) = (line.split()[1] for line in status.split("\n") if line.startswith("SigBlk:"))
        assert int(blocked, 16) == 1 << (signal.SIGINT - 1)
    finally:
        process.kill()
        process.wait()


UNGUARDED = """
import asyncio, sys
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.run.config import parse

print("the script runs", flush=True)
engine = build(parse({"mode": "small", "small": sys.argv[1], "engine": "vllm"}).small)
engine.validate()
asyncio.run(engine.start())
"""


def test_script_without_main_guard_ends_at_once_with_a_message_that_names_the_guard(
    tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    script = tmp_path / "evaluate.py"
    script.write_text(UNGUARDED)
    command = [sys.executable, str(script), str(tiny_pair[0])]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.stdout.count("the script runs") == 2  # the second time in the engine's process
    last_line = ended.stderr.strip().split("\n")[-1]
    assert ended.returncode == 1 and last_line.startswith("lmms_eval_mai.errors.EngineStartError: vLLM cannot start")
    assert 'without `if __name__ == "__main__":`' in last_line


ENDING = """
import atexit, multiprocessing, os, sys
from lmms_eval_mai.engines.vllm import plugin

def run(fails):
    plugin.prepare_engine_process()
    atexit.register(print, "the interpreter cleans up", flush=True)
    if fails:
        raise RuntimeError("the engine fails")

if __name__ == "__main__":
    os.environ[plugin.VARIABLE] = f"{os.getpid()}:{sys.argv[1]}"
    plugin.prepare_engine_process()  # no effect: this process is not an engine's
    for fails in (False, True):
        process = multiprocessing.get_context("spawn").Process(target=run, args=(fails,))
        process.start()
        process.join()
        print(process.exitcode, flush=True)
    print("ended")
"""


@pytest.mark.slow
def test_process_of_an_engine_on_a_cpu_ends_without_the_interpreters_clean_up(tmp_path: Path) -> None:
    script = tmp_path / "ending.py"
    script.write_text(ENDING)
    command = [sys.executable, str(script), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.stdout.split() == ["0", "1", "ended"], ended


def test_closed_engine_ends_by_itself_and_leaks_nothing(
    vllm: Running, tiny_pair: tuple[Path, Path], before: frozenset[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = vllm_engine(tiny_pair, "large")
    vllm.loop.run(engine.start())
    (core,) = new_cores(before)
    killed: list[int] = []
    monkeypatch.setattr("vllm.v1.utils.kill_process_tree", killed.append)  # vLLM kills what does not end in time
    vllm.loop.run(engine.close())
    # Two threads of vLLM may read the status at once. The later one then finds nothing, and Python takes that as 255.
    assert not killed and core.exitcode in (0, 255) and children(before) == [] and not engine.is_up()
