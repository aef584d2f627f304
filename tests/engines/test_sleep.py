"""What is refused or chosen before two engines take turns on one GPU (`sleep=true`)."""

from pathlib import Path
from typing import Any

import pytest

from lmms_eval_mai.engines.base import SIDES
from lmms_eval_mai.engines.build import argument_names, build
from lmms_eval_mai.engines.vllm.host_memory import SLEEP_ARGUMENTS, available_bytes, check_host_memory
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.run.config import parse


def checkpoint(folder: Path, gib: int) -> str:
    """Return a checkpoint with so many GiB of weights; the file takes no space on the disk."""
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as weights:
        weights.truncate(gib << 30)
    return str(folder)


def test_sleep_is_refused_if_the_machine_has_too_little_memory_for_the_weights_of_both_models(tmp_path: Path) -> None:
    models = {"small": checkpoint(tmp_path / "s", 4), "large": checkpoint(tmp_path / "l", 16)}
    engines = parse({"sleep": True, **models}).engines()
    check_host_memory(engines, available_bytes=25 << 30, ranks=1)
    smaller_in_memory = parse({"sleep": True, **models, "large_quantization": "fp8"}).engines()
    check_host_memory(smaller_in_memory, available_bytes=0, ranks=1)
    for ranks, available, words in ((1, 24, "25.0 GiB, and 24.0 GiB are"), (2, 25, "50.0 GiB for the 2 ranks on")):
        with pytest.raises(ArgumentError, match=rf"^sleep=true keeps .*\(4\.0 GiB\) and .*\(16\.0 GiB\) .* {words}"):
            check_host_memory(engines, available << 30, ranks)


def test_models_that_no_machine_can_hold_are_refused_before_an_engine_starts(tmp_path: Path) -> None:
    models = {side: checkpoint(tmp_path / side, 4 << 10) for side in SIDES}
    config = parse({"sleep": True, **models})
    with pytest.raises(ArgumentError, match="GiB are available"):
        build(config.small, config.large, sleep=True)


def test_arguments_of_a_sleeping_engine_exist_in_vllm() -> None:
    names = argument_names("vllm")
    assert names is not None and set(SLEEP_ARGUMENTS) <= names
    engine: Any = build(parse({"pair": "demo"}).small, sleep=True)
    assert engine._config.arguments.items() >= SLEEP_ARGUMENTS.items()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"pair": "demo", "large": "http://a:1/v1"}, "mode=cascade uses vllm and openai"),
        ({"pair": "demo", "mode": "small"}, "mode=small uses one engine"),
        ({"pair": "demo"}, "sleep=true needs a GPU"),
    ],
)
def test_sleep_without_two_vllm_engines_on_a_gpu_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        config = parse({"sleep": True, **arguments})
        build(config.small, config.other(config.small), config.sleep).validate()


def test_memory_of_a_container_is_its_limit_less_what_it_uses(tmp_path: Path) -> None:
    unlimited = available_bytes(tmp_path)  # a machine without control groups
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path) == pytest.approx(unlimited, rel=0.2)
    (tmp_path / "memory.max").write_text("5000\n")
    assert available_bytes(tmp_path) == 4000
