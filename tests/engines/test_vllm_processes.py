"""The processes of vLLM's engines: they start, crash and end, none is left behind, and no other process is touched."""

import asyncio
import contextlib
import multiprocessing
import os
import subprocess
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.engines import Running, engine_of, question, started, vllm_engine

from lmms_eval_mai.contract import Reply, Sampling
from lmms_eval_mai.engines.restart import RestartedEngine
from lmms_eval_mai.errors import EngineCrashed, EngineCrashedByCall, EngineNotRunning, EngineStartError

LONG = Sampling(max_tokens=3000, ignore_eos=True)


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
    return [
        child for child in multiprocessing.active_children() if child.name == "EngineCore" and child.pid not in before
    ]


@pytest.fixture
def before(vllm: Running) -> frozenset[int]:
    return frozenset(child.pid for child in children())


def test_aborted_start_leaves_no_process_and_spares_the_engine_that_starts_beside_it(
    vllm: Running, tiny_pair: tuple[Path, Path], before: frozenset[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so does a start whose core crashes before its first reply."""
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.exceptions import EngineDeadError

    aborted, crashed, other = (vllm_engine(tiny_pair, side) for side in ("large", "large", "small"))

    async def abort() -> None:
        starts = [asyncio.ensure_future(engine.start()) for engine in (aborted, other)]
        while len(new_cores(before)) < 2:
            assert not any(start.done() for start in starts), starts
            await asyncio.sleep(0.05)
        starts[0].cancel()
        await aborted.close()
        await starts[1]

    vllm.loop.run(abort())
    assert len(new_cores(before)) == 1
    (call,) = Running(other, vllm.loop).generate(question(0))
    assert isinstance(call, Reply)
    vllm.loop.run(other.close())

    async def crash(llm: AsyncLLM) -> None:
        raise EngineDeadError

    monkeypatch.setattr(AsyncLLM, "get_supported_tasks", crash)  # the first request to the core
    with pytest.raises(EngineStartError):
        vllm.loop.run(crashed.start())  # a variable, because a deleted engine ends its core
    assert children(before) == []


def test_killed_engine_fails_every_call_in_flight_and_can_be_restarted(
    vllm: Running, tiny_pair: tuple[Path, Path], before: frozenset[int]
) -> None:
    engine = vllm_engine(tiny_pair, "large")
    vllm.loop.run(engine.start())
    processes = children(before)

    async def long_calls() -> list[asyncio.Task[Reply]]:
        calls = [asyncio.ensure_future(engine.generate(question(number), LONG)) for number in range(4)]
        while engine.llm.get_num_unfinished_requests() < len(calls):
            assert not any(call.done() for call in calls), calls
            await asyncio.sleep(0.01)
        return calls

    async def kill_in_flight() -> list[Any]:
        calls = await long_calls()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended with the one before it
                process.kill()
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)

    errors = vllm.loop.run(kill_in_flight())
    assert processes and [type(error) for error in errors] == [EngineCrashed] * 4, errors
    (call,) = vllm.generate(question(0))
    assert isinstance(call, Reply)
    vllm.loop.run(engine.close())
    vllm.loop.run(engine.start())
    answers = Running(engine, vllm.loop).generate(*map(question, range(4)))
    assert [type(call) for call in answers] == [Reply] * 4, answers

    async def close_in_flight() -> list[Any]:
        """As a restart does, if it begins before all calls have noticed the crash."""
        calls = await long_calls()
        await engine.close()
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)

    (core,) = new_cores(before)
    errors = vllm.loop.run(close_in_flight())
    assert [type(error) for error in errors] == [EngineNotRunning] * 4, errors
    # Two threads of vLLM may read the status at once. The later one then finds nothing, and Python takes that as 255.
    assert core.exitcode in (0, 255)  # it was not killed
    assert children(before) == [] and engine.llm is None


def test_the_error_that_ends_a_core_is_the_end_of_the_message(
    cores: None, tiny_pair: tuple[Path, Path], loop: Any
) -> None:
    def engine(processor: str) -> Any:
        return engine_of(
            small=tiny_pair[0], engine="vllm", logits_processors=[f"support.faulty_processors:{processor}"]
        )

    named = pytest.raises(EngineStartError, match=r"ModuleNotFoundError: No module named 'kernels'$")
    with named, started(engine("FailsAtStart"), loop):
        pass
    model = RestartedEngine(engine("FailsInACall"), restarts=1)
    with started(model, loop) as running:
        (error,) = running.generate(question(0))
    assert type(error) is EngineCrashedByCall
    assert str(error).endswith("RuntimeError: CPU attention requires BF16. Compile with a debugger.")


USERS = """
import asyncio, multiprocessing, os, signal, subprocess, sys, time
from support.engine_cores import fork_cores
from support.engines import engine_of
from lmms_eval_mai.engines.vllm.configuration import ONE_PROCESS

def children():
    return {child.pid for child in multiprocessing.active_children()}

async def main():
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    fork_cores()
    arguments = AsyncEngineArgs(
        sys.argv[1], kv_cache_memory_bytes=1 << 26, enforce_eager=True, distributed_executor_backend=ONE_PROCESS
    )
    replicas = {"data_parallel_size": 2, "distributed_executor_backend": ONE_PROCESS}
    engine = engine_of(small=sys.argv[1], engine="vllm", **replicas)
    starting = asyncio.ensure_future(engine.start())
    while not children():
        await asyncio.sleep(0.01)
    sleep = subprocess.Popen(["sleep", "600"])
    process = multiprocessing.Process(target=time.sleep, args=(600,))
    process.start()
    users = await asyncio.to_thread(AsyncLLM.from_engine_args, arguments)
    await starting
    await engine.close()  # the end
    kept = children()
    starting = asyncio.ensure_future(engine.start())
    while len(children()) < len(kept) + 3:  # two cores and their coordinator
        await asyncio.sleep(0.01)
    starting.cancel()
    await engine.close()  # the abort
    assert children() == kept, (children(), kept)
    await users.check_health()
    starting = asyncio.ensure_future(engine.start())
    while len(ours := children() - kept) < 3:
        assert not starting.done(), starting
        await asyncio.sleep(0.001)
    print("processes:", sleep.pid, process.pid, ":", *ours, ":", *kept, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.long
def test_users_processes_and_engine_survive_the_end_and_the_abort_of_an_engine_and_the_kill_of_its_start(
    tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """The user's program starts two processes and an engine of its own while an engine with replicas starts."""
    (program := tmp_path / "users.py").write_text(USERS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(program), str(tiny_pair[0])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("processes:"))  # vLLM may log to stdout
    users, ours, kept = ([psutil.Process(int(pid)) for pid in part.split() if psutil.pid_exists(int(pid))]
                         for part in line.split(":")[1:])  # fmt: skip
    try:
        _, alive = psutil.wait_procs(ours, timeout=60)
        assert alive == [] and len(users) == 2 and all(map(runs, users))
    finally:
        for one in [*users, *ours, *kept]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
