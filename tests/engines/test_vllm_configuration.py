"""What is refused or chosen before a vLLM engine starts: arguments, checkpoints, threads, memory and the log."""

import json
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support.engines import Running, engine_of

from lmms_eval_mai.contract import SIDES, EngineConfig
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.vllm.configuration import ONE_PROCESS, configure
from lmms_eval_mai.engines.vllm.environment import MEDIA_LIMIT, engine_environment, lift_media_limit
from lmms_eval_mai.errors import ArgumentError, EngineUnavailable
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


@pytest.mark.parametrize(("arguments", "executor"), [({}, ONE_PROCESS), ({"tensor_parallel_size": 2}, "mp")])
def test_engine_on_a_cpu_is_one_process_unless_it_needs_several(
    tiny_pair: tuple[Path, Path], arguments: dict[str, Any], executor: str
) -> None:
    config = parse({"method": "small", "small": str(tiny_pair[0]), "small_engine": "vllm", **arguments}).small
    with engine_environment([config]) as machine:
        found = configure(config, [config], machine).vllm_config
    assert found.parallel_config.distributed_executor_backend == executor


def test_folder_whose_path_is_too_long_for_vllms_sockets_is_refused(
    tiny_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket has a path of at most 107 bytes, 37 of them behind the folder."""
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "/".ljust(71, "x"))
    with pytest.raises(EngineUnavailable, match="TMPDIR"):
        engine_of(small=str(tiny_pair[0]), engine="vllm")


def test_size_of_images_is_limited_by_the_users_variable_only(vllm: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import envs

    assert getattr(envs, MEDIA_LIMIT) == 0
    monkeypatch.delattr(envs, MEDIA_LIMIT)
    monkeypatch.setenv(MEDIA_LIMIT, "5")
    lift_media_limit()
    assert MEDIA_LIMIT not in vars(envs)


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
