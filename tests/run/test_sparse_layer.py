"""The layer of `transfer=sparse` is found and checked before an engine starts."""

from pathlib import Path

import pytest
from support.attention import AttentiveEngine

from lmms_eval_mai.engines.scripted.engine import Answer
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.sparse import Sparse
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.engines import Engines
from lmms_eval_mai.run.pair import pair_of
from lmms_eval_mai.run.run import Run


def engine(side: str) -> AttentiveEngine:
    """Return an engine with 4 layers."""
    return AttentiveEngine(side, lambda prompt: Answer(""), {})


@pytest.mark.parametrize(("given", "layer"), [(4, 4), (0.01, 1), (0.33, 1), (0.4, 2), (0.99, 4)])
@pytest.mark.parametrize("source", ["small", "large"])
def test_pair_has_the_number_of_the_layer(source: str, given: float, layer: int) -> None:
    choices = {"sparse_order": "weight", "sparse_boundary": "most", "sparse_delta": 0.5, "sparse_from": source}
    config = parse({"transfer": "sparse", "sparse_layer": given, **choices})
    pair = pair_of({side: engine(side) for side in ("small", "large")}, config)
    assert pair.sparse == Sparse(0.5, layer, source, "weight", "most")  # type: ignore[arg-type]
    assert pair_of({side: engine(side) for side in ("small", "large")}, parse({})).sparse is None


def test_layer_beyond_the_depth_is_refused_with_the_depth() -> None:
    config = parse({"transfer": "sparse", "sparse_layer": 5})
    with pytest.raises(ArgumentError, match=r"sparse_layer=5 does not exist, because the large model has 4 layers"):
        pair_of({side: engine(side) for side in ("small", "large")}, config)


@pytest.mark.parametrize("source", ["large", "small"])
def test_engine_that_cannot_give_attention_is_refused_before_an_engine_starts(tmp_path: Path, source: str) -> None:
    (tmp_path / "script").write_text("")
    script = str(tmp_path / "script")
    config = parse({"engine": "scripted", "small": script, "large": script, "transfer": "sparse", "journal": "off",
                    "sparse_from": source})  # fmt: skip
    with pytest.raises(ArgumentError, match=f"{source}_engine=scripted cannot .*: use {source}_engine=transformers"):
        Run(Engines(config), config)
