"""lmms-eval in a process of its own: the large model and its arguments."""

from pathlib import Path

import pytest

from lmms_eval_mai.bench.whole import own_arguments, with_absolute_path
from lmms_eval_mai.engines.base import EngineConfig
from lmms_eval_mai.run.config import parse

pytestmark = pytest.mark.slow  # lmms-eval's import takes seconds


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_mode_large_has_the_engine_of_the_pair_and_its_arguments(engine: str) -> None:
    config = EngineConfig("large", engine, "/no/model", {"dtype": "float32"})
    parsed = parse(own_arguments(config))
    assert (parsed.mode, parsed.large) == ("large", config)


def test_a_relative_path_of_a_checkpoint_works_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large").mkdir()
    monkeypatch.chdir(tmp_path)
    path, name = (with_absolute_path(EngineConfig("large", "vllm", model)).model for model in ("large", "org/model"))
    assert (path, name) == (str(tmp_path / "large"), "org/model")
