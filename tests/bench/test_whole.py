"""lmms-eval in a process of its own: the arguments of the large model."""

import pytest

from lmms_eval_mai.bench.whole import own_arguments
from lmms_eval_mai.engines.base import EngineConfig
from lmms_eval_mai.run.config import parse

pytestmark = pytest.mark.slow  # lmms-eval's import takes seconds


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_mode_large_has_the_engine_of_the_pair_and_its_arguments(engine: str) -> None:
    config = EngineConfig("large", engine, "/no/model", {"dtype": "float32"})
    parsed = parse(own_arguments(config))
    assert (parsed.mode, parsed.large) == ("large", config)
