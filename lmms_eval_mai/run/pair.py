"""Makes the pair of models of a run, and finds the layer whose attention selects the tokens of `transfer=sparse`."""

from collections.abc import Mapping

from lmms_eval_mai.contract import Engine, Side
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.sample_run import Pair
from lmms_eval_mai.paper.sparse import Sparse
from lmms_eval_mai.run.config import Config

GIVES_ATTENTION = "transformers"
"""The kind of engine that can give attention weights."""


def pair_of(engines: Mapping[Side, Engine], config: Config) -> Pair:
    """Return the pair of these engines. In the modes `small` and `large` it has one engine. Raises `ArgumentError` if
    `transfer=sparse` cannot work with them."""
    return Pair(
        engines.get("small"),
        engines.get("large"),
        think=config.think,
        rules=config.rules,
        first_check=config.first_check(),
        on_overflow=config.on_overflow,
        transfer_answer=config.transfer_answer,
        sparse=sparse_of(config, engines[config.sparse_from]) if config.transfer == "sparse" else None,
        log_prompts=config.log_prompts,
    )


def sparse_of(config: Config, engine: Engine) -> Sparse:
    """Return how tokens are selected. `engine`: the one whose attention is used, after its `validate`. Raises
    `ArgumentError` if it cannot give attention weights, or if its model does not have the layer."""
    side, depth = engine.side, engine.layers()
    if depth is None:
        (kind,) = [one.engine for one in config.engines() if one.side == side]
        others = [one.side for one in config.engines() if one.side != side and one.engine == GIVES_ATTENTION]
        other_source = "".join(f"give sparse_from={other}, " for other in others)
        raise ArgumentError(
            f"transfer=sparse needs attention weights of the {side} model, and {side}_engine={kind} cannot give them: "
            f"use {side}_engine={GIVES_ATTENTION} with a checkpoint, {other_source}or leave transfer out."
        )
    given = config.sparse_layer
    layer = given if isinstance(given, int) else max(1, round(given * depth))
    if layer > depth:
        raise ArgumentError(
            f"sparse_layer={given} does not exist, because the {side} model has {depth} layers: give a "
            f"number from 1 to {depth}, or a share of the layers such as 0.33."
        )
    return Sparse(config.sparse_delta, layer, config.sparse_from, config.sparse_order, config.sparse_boundary)
