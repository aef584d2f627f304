"""A method as a function: both models think, and if they disagree, the longer thinking is transferred.

A program that imports this file may give `method="both_think"` to `Cascade` and `MaiCascade`. Reports and resumed runs
know only its steps, so give a changed function another name.
"""

from lmms_eval_mai.method.calls import gather_or_cancel
from lmms_eval_mai.method.methods import METHODS, Ask, Method, Stop
from lmms_eval_mai.method.run import ask

BOTH, TRANSFER = (Ask("small", "think"), Ask("large", "think")), Ask("large", "transfer", of="small.think")
AGREE = Stop("agree_think", "large.think", agree=("small.think", "large.think"))


async def both_think(opened):
    small, large = await gather_or_cancel(ask(opened, one) for one in BOTH)
    if opened.stops_at(AGREE):
        return opened.finish(AGREE.exit, large.answer)
    longer = max(small.thinking, large.thinking, key=lambda call: call.output_tokens)
    found = await ask(opened, Ask("large", "transfer", of=f"{longer.key.side}.think"))
    return opened.finish("transfer", found.answer)


METHODS["both_think"] = Method("both_think", (BOTH, AGREE, TRANSFER, Stop("transfer", "large.transfer")), both_think)
