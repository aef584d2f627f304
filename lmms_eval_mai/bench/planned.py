"""An engine that answers as planned: it decodes the planned number of tokens and returns the planned text."""

import dataclasses
from collections.abc import Iterable

from lmms_eval_mai.bench.lengths import Plan
from lmms_eval_mai.contract import SIDES, Call, Engine, Prompt, Sampling
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.engines.wrapper import EngineWrapper
from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.paper.cascade import cascade
from lmms_eval_mai.paper.sample import Sample
from lmms_eval_mai.paper.sample_run import Pair
from lmms_eval_mai.run.cancellation import gather_or_cancel


class PlannedEngine(EngineWrapper):
    """Decodes the planned number of tokens and returns the planned text."""

    def __init__(self, engine: Engine, plan: Plan) -> None:
        super().__init__(engine)
        self._plan = plan

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        step = self._plan.step(prompt.key)
        sampling = dataclasses.replace(sampling, max_tokens=step.tokens, ignore_eos=True)
        call = await self._engine.generate(prompt, sampling)
        if call.output_tokens != step.tokens:
            raise MaiError(
                f"{prompt.key} decoded {call.output_tokens} tokens instead of {step.tokens}: the model's context "
                "is too short. Raise max_model_len, or choose other --lengths."
            )
        return dataclasses.replace(call, text=step.text)


async def answer(engines: Iterable[Engine], prompts: Iterable[Prompt]) -> list[Call]:
    """Make these calls at once, each on the engine of its side."""
    by_side = {engine.side: engine for engine in engines}
    calls = [by_side[one.key.side].generate(one, Sampling(max_tokens=1)) for one in prompts if one.key.side in by_side]
    return await gather_or_cancel(calls)


async def prompts_of(sample: Sample, plan: Plan) -> list[Prompt]:
    """Return all prompts of a sample: run the cascade with scripted engines that give the planned answers at once."""
    prompts: list[Prompt] = []

    def script(prompt: Prompt) -> Answer:
        prompts.append(prompt)
        return Answer(plan.step(prompt.key).text)

    small, large = (ScriptedEngine(side, script, ScriptedOptions(time_scale=0)) for side in SIDES)
    await small.start()
    await large.start()
    await cascade(sample, Pair(small, large))
    return prompts
