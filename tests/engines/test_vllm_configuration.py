"""What is refused or chosen before a vLLM engine starts: arguments, checkpoints, GPUs, threads and memory."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support.engine_cores import fork_cores
from support.engines import engine_of, prompt, started

from lmms_eval_mai.contract import SIDES, EngineConfig
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.vllm import environment
from lmms_eval_mai.engines.vllm.configuration import configure
from lmms_eval_mai.engines.vllm.environment import engine_environment, variables
from lmms_eval_mai.engines.vllm.internals import ONE_PROCESS
from lmms_eval_mai.errors import ArgumentError, EngineStartError, EngineUnavailable, PromptTooLong
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.event_loop import LoopThread


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"small": "/no/such/checkpoint"}, ArgumentError, ["/no/such/checkpoint", "config.json"]),
        ({"small_max_model_length": 5}, ArgumentError, ["max_model_length", "max_model_len"]),
        ({"pretrained": "x"}, ArgumentError, ["pretrained", "small=NAME and large=NAME"]),
        ({"small_devices": "first"}, ArgumentError, ["small_devices=first", "[0,1]"]),
        ({"small_devices": 3}, ArgumentError, ["small_devices=3", "CPU"]),
        ({"dtype": "int3"}, ArgumentError, ["dtype=int3 is invalid. vLLM: Input should be 'auto', 'half'"]),
        (
            {"max_model_len": "abc"},
            ArgumentError,
            ["max_model_len=abc is invalid. vLLM: Input should be a valid integer"],
        ),
        ({"enforce_eager": "maybe"}, ArgumentError, ["vLLM: Input should be a valid boolean"]),
        ({"gpu_memory_utilization": 3}, ArgumentError, ["Input should be less than or equal to 1"]),
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
        ({}, None, ONE_PROCESS),
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


@pytest.mark.parametrize(
    ("launched", "threads", "expected"),
    [(True, "1", "6"), (True, "12", "12"), (True, None, "None"), (False, "1", "1")],
)
def test_engine_on_a_gpu_loads_its_weights_with_its_share_of_the_cores_instead_of_a_launchers_one_thread(
    monkeypatch: pytest.MonkeyPatch, launched: bool, threads: str | None, expected: str
) -> None:
    """`expected`: the number of threads of an engine's process."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    launcher = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"} if launched else {}
    for name, value in {**launcher, **({"OMP_NUM_THREADS": threads} if threads else {})}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(24)))  # a machine with 24 cores
    pair = [EngineConfig(side, "vllm", "x") for side in SIDES]
    with engine_environment(variables(pair, "cuda")):
        assert str(os.environ.get("OMP_NUM_THREADS")) == expected
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
    with engine_environment(variables):
        program = "print(open('/proc/self/maps').read())"  # has no OpenMP library of its own
        maps = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert library in maps and ("libiomp5" in maps) is (library == "libiomp5")
    assert os.environ.get("LD_PRELOAD") == own.get("LD_PRELOAD")


@pytest.mark.parametrize(
    ("version", "warns"), [("0.30.0", False), ("0.33.1rc2", False), ("0.29.4", True), ("0.34.0", True), ("1.0", True)]
)
def test_release_of_vllm_that_was_not_tried_is_a_warning_and_no_refusal(
    monkeypatch: pytest.MonkeyPatch, warnings: list[str], version: str, warns: bool
) -> None:
    monkeypatch.setattr("vllm.__version__", version)
    environment.check_release.cache_clear()
    assert environment.detect_platform() == "cpu"
    environment.check_release.cache_clear()
    expected = f"vLLM {version} was not tried with this package. It was tried with 0.30 to 0.33"
    assert any(expected in text for text in warnings) is warns


def test_two_starts_at_the_same_time_have_one_environment_and_the_last_restores_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHARED", "user")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.delenv("ADDED", raising=False)
    changes = {"SHARED": "engine", "ADDED": "yes"}
    first_ended, second_entered = threading.Event(), threading.Event()
    seen: list[Any] = []

    def second_start() -> None:
        with engine_environment(changes):
            second_entered.set()
            first_ended.wait()
            seen.append((os.environ["SHARED"], "LOCAL_RANK" in os.environ))

    thread = threading.Thread(target=second_start)
    with engine_environment(changes):
        thread.start()
        second_entered.wait()
    first_ended.set()
    thread.join()
    assert seen == [("engine", False)]  # the end of the first start changed nothing for the second
    assert (os.environ["SHARED"], os.environ["LOCAL_RANK"]) == ("user", "1") and "ADDED" not in os.environ


def test_context_that_vllm_chooses_is_read_back_and_part_of_the_description(
    tiny_pair: tuple[Path, Path], loop: LoopThread, warnings: list[str]
) -> None:
    """A KV cache of 3 MiB holds no 4,096 tokens, the context of the model."""
    fork_cores()
    small = {"max_model_len": "auto", "kv_cache_memory_bytes": 3 << 20, "dtype": "float32"}
    engine = engine_of(small=str(tiny_pair[0]), small_engine="vllm", **small)
    engine.validate()
    assert "a context that vLLM chooses" in engine.describe()
    assert '"max_model_len": "auto"' in engine.identity()["arguments"]
    with started(engine, loop) as running:
        (context,) = re.findall(r"context (\d+) tokens, chosen by vLLM", engine.describe())
        assert 32 <= int(context) < 4096
        assert any(f"vLLM chose a context of {int(context):,} tokens for small=" in text for text in warnings)
        (error,) = running.generate(prompt(0, "word " * int(context)))
        assert isinstance(error, PromptTooLong) and f"{context} tokens" in str(error)
