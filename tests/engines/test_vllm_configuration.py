"""What is refused or chosen before a vLLM engine starts: arguments, checkpoints, threads, memory and the log."""

import json
import logging
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from support.engines import LoopThread, Running, engine_of, prompt, started

from lmms_eval_mai.contract import SIDES, EngineConfig
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.vllm.configuration import ONE_PROCESS, configure
from lmms_eval_mai.engines.vllm.environment import MEDIA_LIMIT, engine_environment, lift_media_limit
from lmms_eval_mai.errors import ArgumentError, EngineUnavailable, PromptTooLong
from lmms_eval_mai.run.config import parse


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
    with pytest.raises(ArgumentError, match="Qwen3ForCausalLM"):
        build(parse({"small": str(text_only), "engine": engine}).small)


def test_without_vllm_the_error_names_the_command_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "vllm" or name.startswith("vllm.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vllm", None)  # Python's own way to make an import fail
    with pytest.raises(EngineUnavailable, match=r"pip install -e \"\.\[vllm\]\"[\s\S]*\[cpu\]"):
        build(EngineConfig("small", "vllm", "x"))


def test_identity_has_the_true_values_that_change_answers_and_no_others(tiny_pair: tuple[Path, Path]) -> None:
    def identity(**arguments: Any) -> str:
        found: str = engine_of(small=str(tiny_pair[0]), engine="vllm", **arguments).identity()
        return found

    plain, tokenizer = identity(), str(tiny_pair[1])
    assert tokenizer in identity(tokenizer=tokenizer) != plain
    assert identity(seed=5) != identity(seed=6)
    assert identity(max_model_len=2048) != plain
    assert identity(gpu_memory_utilization=0.4, max_num_seqs=8, kv_cache_memory_bytes=1 << 26, block_size=16) == plain


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
    config = parse({"method": "small", "small": str(tiny_pair[0]), "small_engine": "vllm", **arguments}).small
    with engine_environment([config]) as machine:
        found = configure(config, [config], machine).vllm_config
    assert found.parallel_config.distributed_executor_backend == executor


@pytest.mark.long
def test_context_that_vllm_chooses_is_read_back_and_part_of_the_description(
    cores: None, tiny_pair: tuple[Path, Path], loop: LoopThread
) -> None:
    """A KV cache of 3 MiB holds no 4,096 tokens, the context of the model."""
    small = {"max_model_len": "auto", "kv_cache_memory_bytes": 3 << 20, "dtype": "float32"}
    with started(engine_of(small=str(tiny_pair[0]), small_engine="vllm", **small), loop) as running:
        context = running.engine.llm.vllm_config.model_config.max_model_len
        assert 32 <= context < 4096 and f"context {context} tokens" in running.engine.description
        (error,) = running.generate(prompt(0, "word " * context))
        assert isinstance(error, PromptTooLong)


def test_folder_whose_path_is_too_long_for_vllms_sockets_is_refused(
    tiny_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A socket has a path of at most 107 bytes, 37 of them behind the folder."""
    temporary = tmp_path / ("x" * 71)
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)  # Python reads TMPDIR once
    for folder in (None, "/".ljust(71, "x")):
        if folder is not None:
            monkeypatch.setenv("VLLM_RPC_BASE_PATH", folder)
        with pytest.raises(EngineUnavailable, match="TMPDIR"):
            engine_of(small=str(tiny_pair[0]), engine="vllm")
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "/".ljust(70, "x"))
    engine_of(small=str(tiny_pair[0]), engine="vllm")


def test_size_of_images_is_limited_by_the_users_variable_only(vllm: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import envs

    assert getattr(envs, MEDIA_LIMIT) == 0
    monkeypatch.delattr(envs, MEDIA_LIMIT)
    monkeypatch.setenv(MEDIA_LIMIT, "5")
    lift_media_limit()
    assert MEDIA_LIMIT not in vars(envs)


# --- the environment ------------------------------------------------------------------------------------------


def vllm_log() -> tuple[Any, ...]:
    logger = logging.getLogger("vllm")
    return logger.level, [handler.level for handler in logger.handlers]


def test_environment_and_log_of_the_user_are_as_before(
    tiny_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    pair = [EngineConfig(side, "vllm", str(path)) for side, path in zip(SIDES, tiny_pair, strict=True)]
    names = ("VLLM_LOGGING_LEVEL", "OMP_NUM_THREADS", "LOCAL_RANK", "LD_PRELOAD", "VLLM_CPU_OMP_THREADS_BIND")
    before = [os.environ.get(name) for name in names], vllm_log()
    with engine_environment(pair) as machine:
        inside = [os.environ.get(name) for name in names], vllm_log()
        configure(pair[0], pair, machine)
        assert inside[0][:3] == ["ERROR", str(max(1, len(os.sched_getaffinity(0)) // 2)), None]
        assert inside[1][0] == logging.ERROR
    assert ([os.environ.get(name) for name in names], vllm_log()) == before != inside


@pytest.mark.slow
def test_pairs_that_start_at_the_same_time_have_an_environment_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(24)))  # a machine with 24 cores
    seen: dict[int, set[str]] = {}

    def start(workers: int) -> None:
        for _ in range(20):
            with engine_environment([EngineConfig("small", "vllm", "x", {"tensor_parallel_size": workers})]):
                threading.Event().wait(0.001)
                seen.setdefault(workers, set()).add(os.environ["OMP_NUM_THREADS"])

    threads = [threading.Thread(target=start, args=(workers,)) for workers in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {1: {"24"}, 2: {"12"}, 3: {"8"}}
