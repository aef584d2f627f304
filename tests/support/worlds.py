"""Made-up answers of two models to many documents, the same in every run of the tests."""

import random
from pathlib import Path

from support.folders import Answers, World


def pope_world(number: int = 200) -> World:
    """Return yes-no questions on which both models are often right, and sometimes unreadable."""
    chance = random.Random(7)

    def answer(gold: str, right: float) -> str:
        wrong = "no" if gold == "yes" else "yes"
        return chance.choices([gold, wrong, ""], [right, 0.97 - right, 0.03])[0]

    golds = [chance.choice(["yes", "no"]) for _ in range(number)]
    return World(
        "pope", [Answers(gold, *(answer(gold, right) for right in (0.7, 0.8, 0.75, 0.85, 0.9))) for gold in golds]
    )


def write_all(world: World, folder: Path) -> None:
    """Write a run of each method of Tables 5 to 8, 10 and 15."""
    runs = [
        ("mai", "s"),
        ("mai", "r_s2"),
        ("full_rt", "s"),
        *((m, s) for m in ("small", "large") for s in ("s", "r", "r_s2")),
    ]
    for number, (method, suffix) in enumerate(runs):
        world.write(folder, method, suffix, time=f"20260101_0000{number:02d}")


WORLD = pope_world()


def exit_of(one: Answers) -> str:
    """Return the exit of the cascade."""
    if one.small and one.small == one.large:
        return "agree_short"
    return "agree_think" if one.thought and one.thought == one.large else "transfer"


def final(one: Answers) -> str:
    """Return the final answer of the cascade."""
    return one.transferred if exit_of(one) == "transfer" else one.large
