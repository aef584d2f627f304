"""The calls that a method makes for one document, so that the calls of two methods can be compared before any run."""

from dataclasses import dataclass

from lmms_eval_mai.engines.base import Side
from lmms_eval_mai.paper.prompts import VARIANTS
from lmms_eval_mai.reproduce.methods import Method
from lmms_eval_mai.run.config import Config

Prompt = tuple[str, ...]
"""Names one prompt to one model for a document: the model, and all that the prompt depends on."""


@dataclass(frozen=True)
class Calls:
    """The calls for one document."""

    certain: tuple[Prompt, ...]
    possible: tuple[Prompt, ...] = ()
    """Calls that depend on the answers of the certain ones."""


def calls_of(method: Method, config: Config) -> Calls:
    """Return the calls of a method with these models and arguments (`paper/cascade.py`)."""
    variant, two_stage = VARIANTS.get(method.suffix, (None, False))
    simple = {side: _prompt(config, side, "S") for side in ("small", "large")}
    if method.mode in ("small", "large"):
        if variant in (None, "S"):
            return Calls((simple[method.mode],))
        think = _prompt(config, method.mode, str(variant))
        return Calls((think, (*think, "stage 2")) if two_stage else (think,))
    transfer = _transfer(config, config.think if variant in (None, "S") else str(variant))
    if method.mode == "transfer":
        return Calls(transfer)
    think = transfer[0]
    stage2 = (_stage2(think),) if two_stage else ()
    return Calls((simple["small"], simple["large"]), (think, *stage2, *transfer[1:]))


def _prompt(config: Config, side: str, variant: str) -> Prompt:
    return (config.small.model if side == "small" else config.large.model, variant)


def _stage2(think: Prompt) -> Prompt:
    return (*think[:2], "stage 2")


def _transfer(config: Config, variant: str) -> tuple[Prompt, ...]:
    """Return the calls of a transfer: the thinking, the scoring of its tokens if there is one, and the answer."""
    think = _prompt(config, "small", variant)
    answer = (config.large.model, "transfer", *think)
    if config.transfer == "full":
        return think, answer
    source: Side = config.sparse_from
    if source == "small":  # the thinking is asked for with its attention weights
        return (*think, "attention"), (*answer, "sparse")
    return think, (config.large.model, "score", *think), (*answer, "sparse")
