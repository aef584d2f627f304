"""The engine that reads single heads."""

import pytest

from lmms_eval_mai.attention.heads import HeadReader
from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.errors import ArgumentError


@pytest.mark.parametrize("kind", ["openai", "scripted"])
def test_engine_without_a_checkpoint_is_refused(kind: str) -> None:
    with pytest.raises(ArgumentError, match=f"large_engine={kind} has no checkpoint"):
        HeadReader(EngineConfig("large", kind, "somewhere"))
