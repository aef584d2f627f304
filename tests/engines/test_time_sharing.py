"""Two engines that take turns: never are both awake, all calls are answered, and a death does not stop the other."""

import asyncio
from typing import Any

import pytest
from support.engines import prompt

from lmms_eval_mai.engines.base import Call, Prompt, Sampling
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.restart import RestartingEngine
from lmms_eval_mai.engines.scripted import Answer, ScriptedEngine
from lmms_eval_mai.engines.time_sharing import TimeSharedEngine, TimeSharing
from lmms_eval_mai.errors import ArgumentError, EngineCrashed
from lmms_eval_mai.run.config import parse

SAMPLING = Sampling(max_tokens=8)


class Card:
    """What is in its memory."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.log: list[str] = []

    def take(self, name: str) -> None:
        self.held.add(name)
        assert len(self.held) == 1, "two models on one card"

    def give_back(self, name: str) -> None:
        self.held.discard(name)


class Sleeping(ScriptedEngine):
    """A scripted engine that needs the card while it is awake."""

    def __init__(self, name: str, card: Card, deadly: int | None = None) -> None:
        def script(asked: Prompt) -> Answer:
            assert card.held == {name}, f"{name} answers while {card.held} is awake"
            card.log.append(name)
            fault = "death" if asked.key.doc_id == deadly and card.log.count("death") == 0 else None
            card.log += ["death"] if fault else []
            return Answer("yes", seconds=0.002, fault=fault)  # type: ignore[arg-type]

        super().__init__(name, script)
        self._card = card

    async def start(self) -> None:
        self._card.take(self.side)
        await super().start()

    async def close(self) -> None:
        await super().close()
        self._card.give_back(self.side)

    async def sleep(self) -> None:
        if self._slots is None:
            self._card.give_back(self.side)
            raise EngineCrashed(f"The {self.side} engine is dead.")
        assert not self._answering
        await asyncio.sleep(0.001)
        self._card.give_back(self.side)

    async def wake(self) -> None:
        self._card.take(self.side)
        await asyncio.sleep(0.001)


def cascade(count: int, deadly: int | None = None) -> tuple[list[Any], Card, TimeSharing]:
    """Samples that ask both, then the small one, then the large one."""
    card, turns = Card(), TimeSharing()

    async def run() -> list[Any]:
        small, large = (
            RestartingEngine(
                TimeSharedEngine(Sleeping(name, card, deadly if name == "small" else None), turns), restarts=1
            )
            for name in ("small", "large")
        )
        await small.start()
        await large.start()

        async def sample(number: int) -> list[Call]:
            asked = prompt(number)
            first = await asyncio.gather(small.generate(asked, SAMPLING), large.generate(asked, SAMPLING))
            return [*first, await small.generate(asked, SAMPLING), await large.generate(asked, SAMPLING)]

        found = await asyncio.gather(*(sample(number) for number in range(count)))
        await small.close()
        await large.close()
        return found

    return asyncio.run(asyncio.wait_for(run(), 30)), card, turns


def test_never_are_both_awake_and_samples_that_are_open_move_stage_by_stage() -> None:
    found, card, turns = cascade(40)
    assert [len(calls) for calls in found] == [4] * 40 and len(card.log) == 160
    assert turns.taken <= 6 and card.held == set()


def test_an_engine_that_dies_in_its_turn_comes_back() -> None:
    found, card, _ = cascade(20, deadly=7)
    assert [len(calls) for calls in found] == [4] * 20 and card.log.count("death") == 1


def test_a_call_that_is_cancelled_while_it_waits_leaves_the_turns_in_order() -> None:
    card, turns = Card(), TimeSharing()

    async def run() -> list[Call]:
        small, large = (TimeSharedEngine(Sleeping(name, card), turns) for name in ("small", "large"))
        await small.start()
        await large.start()
        waiting = [asyncio.ensure_future(small.generate(prompt(i), SAMPLING)) for i in range(4)]
        await asyncio.sleep(0)
        for task in waiting[:3]:
            task.cancel()
        answers = await asyncio.gather(waiting[3], large.generate(prompt(9), SAMPLING))
        await small.close()
        await large.close()
        return answers

    assert len(asyncio.run(asyncio.wait_for(run(), 30))) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"pair": "demo", "large": "http://a:1/v1"}, "sleep=true needs two vLLM engines"),
        ({"pair": "demo", "mode": "small"}, "mode=small has others"),
        ({"pair": "demo"}, "sleep=true needs a GPU"),
    ],
)
def test_turns_that_cannot_be_taken_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        config = parse({"sleep": True, **arguments})
        build(config.small, config.other(config.small), config.sleep).validate()
