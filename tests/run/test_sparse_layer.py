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


@pytest.mark.parametrize(("given", "layer"), [(1, 1), (4, 4), (0.33, 1), (0.5, 2), (0.99, 4), (0.001, 1)])
@pytest.mark.parametrize("source", ["small", "large"])
def test_pair_has_the_number_of_the_layer(source: str, given: float, layer: int) -> None:
    choices = {"sparse_order": "weight", "sparse_boundary": "most", "sparse_delta": 0.5, "sparse_from": source}
    config = parse({"transfer": "sparse", "sparse_layer": given, **choices})
    pair = pair_of({side: engine(side) for side in ("small", "large")}, config)
    assert pair.sparse == Sparse(0.5, layer, source, "weight", "most")  # type: ignore[arg-type]


def test_pair_of_full_transfer_selects_nothing() -> None:
    assert pair_of({side: engine(side) for side in ("small", "large")}, parse({})).sparse is None


def test_layer_beyond_the_depth_is_refused_with_the_depth() -> None:
    config = parse({"transfer": "sparse", "sparse_layer": 5})
    with pytest.raises(ArgumentError) as error:
        pair_of({side: engine(side) for side in ("small", "large")}, config)
    assert str(error.value) == (
        "sparse_layer=5 does not exist, because the large model has 4 layers: give a number from 1 to 4, or a share of "
        "the layers such as 0.33."
    )


def test_engine_that_cannot_give_attention_is_refused_before_an_engine_starts(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("")
    script = str(tmp_path / "script")
    for source in ("large", "small"):
        config = parse({"engine": "scripted", "small": script, "large": script, "transfer": "sparse", "journal": "off",
                        "sparse_from": source})  # fmt: skip
        with pytest.raises(ArgumentError) as error:
            Run(Engines(config), config)
        assert str(error.value) == (
            f"transfer=sparse needs attention weights of the {source} model, and {source}_engine=scripted cannot give "
            f"them: use {source}_engine=transformers with a checkpoint, or leave transfer out."
        )
