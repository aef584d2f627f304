"""What is refused or chosen before a vLLM engine starts: arguments, checkpoints, GPUs, threads and memory."""

import json
import os
import platform
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lmms_eval_mai.contract import SIDES, EngineConfig
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.vllm import memory, openmp
from lmms_eval_mai.engines.vllm.arguments import UNIPROC_EXECUTOR
from lmms_eval_mai.engines.vllm.configuration import configure
from lmms_eval_mai.engines.vllm.placement import THREADS_SET_BY_VLLM, ChildEnvironment, environment
from lmms_eval_mai.errors import ArgumentError, EngineStartError, EngineUnavailable
from lmms_eval_mai.run.config import parse


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"small": "/no/such/checkpoint"}, ArgumentError, ["/no/such/checkpoint", "config.json"]),
        ({"small_max_model_length": 5}, ArgumentError, ["max_model_length", "max_model_len"]),
        ({"pretrained": "x"}, ArgumentError, ["pretrained", "small=NAME and large=NAME"]),
        ({"small_devices": "first"}, ArgumentError, ["small_devices=first", "[0,1]"]),
        ({"small_devices": 3}, ArgumentError, ["small_devices=3", "CPU"]),
        ({"dtype": "int3"}, ArgumentError, ["dtype=int3 is invalid: vLLM expects 'auto', 'half'"]),
        ({"max_model_len": "abc"}, ArgumentError, ["max_model_len=abc is invalid: vLLM expects an integer."]),
        ({"enforce_eager": "maybe"}, ArgumentError, ["enforce_eager=maybe is invalid: vLLM expects true or false."]),
        ({"gpu_memory_utilization": 3}, ArgumentError, ["vLLM expects a number less than or equal to 1."]),
        ({"max_model_len": 999999}, EngineStartError, ["max_model_len (999999)", "4096"]),
    ],
)
def test_wrong_arguments_are_refused_before_any_engine_starts(
    tiny_pair: tuple[Path, Path], arguments: dict[str, Any], error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as raised:
        build(parse({"small": str(tiny_pair[0]), **arguments}).small).validate()
    assert all(word in str(raised.value) for word in words), str(raised.value)


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_text_only_model_is_refused_before_any_engine_starts(
    tiny_pair: tuple[Path, Path], tmp_path: Path, engine: str
) -> None:
    from transformers import Qwen3Config

    text_only = shutil.copytree(tiny_pair[0], tmp_path / "text-only")
    for path in text_only.glob("*processor*"):
        path.unlink()
    vision_language = json.loads((text_only / "config.json").read_text())
    sizes = {name: vision_language["text_config"][name] for name in ("vocab_size", "hidden_size", "head_dim")}
    Qwen3Config(num_hidden_layers=2, architectures=["Qwen3ForCausalLM"], **sizes).save_pretrained(text_only)
    with pytest.raises(ArgumentError, match=rf"^small={text_only} cannot read images: .*Qwen3ForCausalLM.*text-only"):
        build(parse({"small": str(text_only), "engine": engine}).small).validate()


@pytest.mark.parametrize(
    ("arguments", "bound", "executor"),
    [
        ({}, None, UNIPROC_EXECUTOR),
        ({}, "0", "mp"),
        ({"tensor_parallel_size": 2}, None, "mp"),
        ({"distributed_executor_backend": "mp"}, None, "mp"),
    ],
)
def test_engine_on_a_cpu_is_one_process_unless_its_threads_are_bound(
    tiny_pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, Any],
    bound: str | None,
    executor: str,
) -> None:
    if bound is not None:
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", bound)
    config = parse({"mode": "small", "small": str(tiny_pair[0]), "small_engine": "vllm", **arguments})
    found = configure(config.small, None).vllm_config
    assert found.parallel_config.distributed_executor_backend == executor


def test_without_vllm_the_error_names_the_command_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "vllm" or name.startswith("vllm.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vllm", None)  # Python's own way to make an import fail
    with pytest.raises(EngineUnavailable, match=r"pip install -e \"\.\[vllm\]\"[\s\S]*\[cpu\]"):
        build(EngineConfig("small", "vllm", "x")).validate()


# --- GPUs and memory --------------------------------------------------------------------------------------


def engines_of(**arguments: dict[str, Any]) -> tuple[EngineConfig, EngineConfig]:
    small, large = (EngineConfig(side, "vllm", f"/{side}", arguments.get(side, {})) for side in SIDES)
    return small, large


FIXED = {"kv_cache_memory_bytes": 1 << 30}


@pytest.mark.parametrize(
    ("platform", "gpus", "small", "large", "alone"),
    [
        ("cpu", (None, None), {}, {}, False),
        ("cpu", (None, None), {"kv_cache_memory_bytes": None}, {}, True),  # vLLM measures
        ("cuda", (None, None), {}, {}, True),
        ("cuda", ((0,), (1,)), {}, {}, False),
        ("cuda", ((0, 1), (1,)), {}, {}, True),
        ("cuda", ((0,), None), {}, {}, True),
        ("cuda", (None, None), FIXED, {}, True),
        ("cuda", (None, None), FIXED, FIXED, False),
    ],
)
def test_engines_start_one_after_the_other_only_if_one_measures_memory_that_they_share(
    platform: Any, gpus: Any, small: dict[str, Any], large: dict[str, Any], alone: bool
) -> None:
    first, second = engines_of(small=small, large=large)
    assert memory.starts_alone(first, second, *gpus, platform) is alone
    assert memory.starts_alone(second, first, *reversed(gpus), platform) is alone


@pytest.mark.parametrize(
    ("launched", "threads", "expected"),
    [(True, "1", "6 1"), (True, "12", "12 None"), (True, None, "None None"), (False, "1", "1 None")],
)
def test_engine_on_a_gpu_loads_its_weights_with_its_share_of_the_cores_instead_of_a_launchers_one_thread(
    monkeypatch: pytest.MonkeyPatch, launched: bool, threads: str | None, expected: str
) -> None:
    """`expected`: in an engine's process, the number of threads, and whether vLLM may lower it later."""
    for name, value in {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items() if launched else ():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if threads is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(24)))  # a machine with 24 cores
    with ChildEnvironment(environment((0,), 2, "cuda")):
        program = f"import os; print(os.getenv('OMP_NUM_THREADS'), os.getenv('{THREADS_SET_BY_VLLM}'))"
        seen = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert seen.strip() == expected
    assert os.environ.get("OMP_NUM_THREADS") == threads


@pytest.mark.skipif(platform.machine() != "x86_64", reason="vLLM's CPU build has Intel's OpenMP on x86 only")
@pytest.mark.parametrize(
    ("own", "library"),
    [({}, "libiomp5"), ({"LD_PRELOAD": "libgomp.so.1"}, "libgomp"), ({"VLLM_CPU_OMP_THREADS_BIND": "0"}, "libgomp")],
)
def test_engine_on_a_cpu_has_intels_openmp_unless_the_user_preloads_another_one_or_binds_threads(
    tiny_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, own: dict[str, str], library: str
) -> None:
    for name in ("LD_PRELOAD", "VLLM_CPU_OMP_THREADS_BIND"):
        monkeypatch.delenv(name, raising=False)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    pair = parse({"small": str(tiny_pair[0]), "large": str(tiny_pair[1])})
    variables = configure(pair.small, pair.large).environment
    with ChildEnvironment(variables):
        program = "print(open('/proc/self/maps').read())"  # has no OpenMP library of its own
        maps = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert library in maps and ("libiomp5" in maps) is (library == "libiomp5")
    assert os.environ.get("LD_PRELOAD") == own.get("LD_PRELOAD")


def test_an_engine_has_the_libraries_that_vllm_preloads_too(monkeypatch: pytest.MonkeyPatch) -> None:
    both = "/vllm/libs/libtcmalloc.so.4:/lib/libiomp5.so"
    monkeypatch.setenv("LD_PRELOAD", both)  # vLLM adds its memory allocator while it makes its configuration
    environment = {"LD_PRELOAD": "/lib/libiomp5.so"}
    openmp.add_what_vllm_preloads(environment)
    assert environment == {"LD_PRELOAD": both}


def test_two_starts_at_the_same_time_do_not_mix_their_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARED", "user")
    monkeypatch.setenv("LOCAL_RANK", "1")
    seen: list[Any] = []
    entered = threading.Event()

    def second_start() -> None:
        entered.set()
        with ChildEnvironment({"SHARED": "second", "ONLY_SECOND": "yes"}):
            seen.append((os.environ["SHARED"], "ONLY_FIRST" in os.environ, "LOCAL_RANK" in os.environ))

    thread = threading.Thread(target=second_start)
    with ChildEnvironment({"SHARED": "first", "ONLY_FIRST": "yes"}) as first:
        thread.start()
        entered.wait()
        seen.append((os.environ["SHARED"], "ONLY_SECOND" in os.environ, "LOCAL_RANK" in os.environ))
        first.restore()
        thread.join()
    assert seen == [("first", False, False), ("second", False, False)]
    assert (os.environ["SHARED"], os.environ["LOCAL_RANK"]) == ("user", "1")
    assert not {"ONLY_FIRST", "ONLY_SECOND"} & set(os.environ)
