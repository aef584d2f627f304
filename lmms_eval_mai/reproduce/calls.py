"""The calls that a method makes for one document, so that the calls of two methods can be compared before any run."""

from dataclasses import dataclass, field, replace
from typing import Optional

from lmms_eval_mai.contract import Side, Stage
from lmms_eval_mai.paper.prompts import VARIANTS
from lmms_eval_mai.reproduce.methods import Method
from lmms_eval_mai.run.config import Config


@dataclass(frozen=True)
class PlannedCall:
    """One prompt to one model for a document. Two calls are equal if a greedy model gives them the same answer."""

    model: str
    prompt: str
    """S, E or R, or the name of a later prompt."""
    thinking: Optional["PlannedCall"] = None
    """The call whose text is in the prompt."""
    attention: bool = False
    """Whether it is asked for with its attention weights."""
    side: Side = field(default="small", compare=False)
    stage: Stage = field(default="short", compare=False)


@dataclass(frozen=True)
class Calls:
    """The calls for one document."""

    certain: tuple[PlannedCall, ...]
    possible: tuple[PlannedCall, ...] = ()
    """Calls that depend on the answers of the certain ones."""


def calls_of(method: Method, config: Config) -> Calls:
    """Return the calls of a method with these models and arguments (`paper/cascade.py`)."""
    variant, two_stage = VARIANTS.get(method.suffix, (None, False))
    if method.mode in ("small", "large"):
        side: Side = "small" if method.mode == "small" else "large"
        if variant is None:
            return Calls((replace(_short(config, side), stage="task"),))
        if variant == "S":
            return Calls((_short(config, side),))
        think = _think(config, side, variant)
        return Calls((think, _stage2(think)) if two_stage else (think,))
    transfer = _transfer(config, config.think if variant in (None, "S") else str(variant))
    if method.mode == "transfer":
        return Calls(transfer)
    think = transfer[0]
    stage2 = (_stage2(think),) if two_stage else ()
    return Calls((_short(config, "small"), _short(config, "large")), (think, *stage2, *transfer[1:]))


def _model(config: Config, side: Side) -> str:
    return config.small.model if side == "small" else config.large.model


def _short(config: Config, side: Side) -> PlannedCall:
    return PlannedCall(_model(config, side), "S", side=side, stage="short")


def _think(config: Config, side: Side, variant: str) -> PlannedCall:
    return PlannedCall(_model(config, side), variant, side=side, stage="think")


def _stage2(think: PlannedCall) -> PlannedCall:
    return PlannedCall(think.model, "stage 2", replace(think, attention=False), side=think.side, stage="stage2")


def _transfer(config: Config, variant: str) -> tuple[PlannedCall, ...]:
    """Return the calls of a transfer: the thinking, the scoring of its tokens if there is one, and the answer."""
    think = _think(config, "small", variant)
    answer = PlannedCall(config.large.model, "transfer", think, side="large", stage="transfer")
    if config.transfer == "full":
        return think, answer
    answer = replace(answer, prompt="sparse transfer")
    if config.sparse_from == "small":  # the thinking is asked for with its attention weights
        return replace(think, attention=True), answer
    return think, replace(answer, prompt="score", stage="score"), answer
