"""The two controls of Table 9: tokens of a thinking that are chosen without attention."""

import random
from collections.abc import Iterable, Sequence


def random_tokens(tokens: int, kept: int, seed: str) -> list[int]:
    """Return `kept` of the positions 0..tokens-1, drawn with a seed, in ascending order.

    With the same seed, a larger number of positions has the smaller one in it. So the control of two layers differs
    only by the number of tokens.
    """
    positions = list(range(tokens))
    random.Random(seed).shuffle(positions)
    return sorted(positions[:kept])


def last_tokens(tokens: int, kept: int) -> list[int]:
    """Return the last `kept` of the positions 0..tokens-1."""
    return list(range(tokens - kept, tokens))


def text_of(tokens: Sequence[str], positions: Iterable[int]) -> str:
    """Return the tokens at these positions as text, in the order of the thinking, as sparse transfer does."""
    return "".join(tokens[position] for position in sorted(positions))
