"""One renderer process without an engine: its end, wrong configurations, and the memory that it shares."""

import gc
import os
import subprocess
import sys
from typing import Any

import psutil
import pytest
import torch
from support.engines import question

from lmms_eval_mai.engines.vllm import shared_memory
from lmms_eval_mai.engines.vllm.placement import renderer_processes
from lmms_eval_mai.engines.vllm.renderer_process import RendererProcess, RendererStopped
from lmms_eval_mai.errors import ArgumentError


@pytest.mark.slow
def test_close_ends_all_prompts_of_a_renderer_process() -> None:
    process = RendererProcess()
    process.configure({})  # the process imports vLLM for some seconds, and the prompts wait
    jobs = [process.render(question(number).messages) for number in range(6)]
    assert jobs[5].cancel()  # its caller does not wait any more
    clearing = process.clear_cache()
    process.close()
    for job in (*jobs[:5], process.render(question(6).messages)):
        with pytest.raises(RendererStopped, match="was closed"):
            job.result(0)
    assert clearing.result(0) is None and process.clear_cache().result(0) is None


@pytest.mark.parametrize(
    ("cores", "ranks", "count"),
    [(1, 1, 1), (2, 1, 1), (4, 1, 1), (5, 1, 2), (8, 1, 2), (12, 1, 3), (64, 1, 4), (64, 8, 2), (32, 8, 1)],
)
def test_number_of_renderer_processes_follows_from_the_cores_of_the_rank(
    monkeypatch: pytest.MonkeyPatch, cores: int, ranks: int, count: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert renderer_processes("small", None) == count
    assert renderer_processes("small", 3.0) == 3  # as lmms-eval may read it


@pytest.mark.parametrize("given", [0, 1.5, "two", True])
def test_wrong_number_of_renderer_processes_is_refused(given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"large_renderer_processes=.*a whole number of at least 1"):
        renderer_processes("large", given)


PARENT = """
import os, time
from lmms_eval_mai.engines.vllm.renderer_process import RendererProcess
process = RendererProcess()
if os.fork() == 0:  # keeps the socket open
    time.sleep(60)
print(process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_renderer_process_ends_if_its_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    renderer = psutil.Process(int(parent.stdout.readline()))
    (fork,) = [child for child in psutil.Process(parent.pid).children() if child != renderer]
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs([renderer], timeout=300)  # it notices after its imports
    fork.kill()
    assert alive == []


def test_shared_memory_keeps_types_shapes_and_values_and_leaves_no_descriptor() -> None:
    sender, receiver = shared_memory.socket_pair()
    big = torch.arange(100_000, dtype=torch.float32).reshape(100, 1000)
    values = [big, big.to(torch.bfloat16).T, torch.tensor(3), torch.empty(0, 4), torch.ones(2, dtype=torch.bool)]
    values += [shared_memory.shared_copy(big), shared_memory.shared_copy(values[2])]
    gc.collect()  # garbage of earlier tests may hold descriptors
    before = len(os.listdir("/proc/self/fd"))
    with sender, receiver:
        shared_memory.send(sender, {"tensors": values, "array": big.numpy(), "text": "x"})
        found = shared_memory.receive(receiver)
    assert len(os.listdir("/proc/self/fd")) == before - 2
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found["tensors"], values, strict=True))
    assert (found["array"] == big.numpy()).all() and found["text"] == "x"
    spare = shared_memory.SpareMemory()
    sender, receiver = shared_memory.socket_pair()
    with sender, receiver:
        for scale in (5, 2, 9):  # smaller and larger contents in the same memory
            spare.put(shared_memory.send(sender, values[0].numpy()[::scale].copy(), spare))
            assert (shared_memory.receive(receiver) == values[0].numpy()[::scale]).all()
    assert len(os.listdir("/proc/self/fd")) == before
    spare.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2
    found["tensors"][5].zero_()  # a receiver changes its own copy only
    assert torch.equal(values[5], big)
