"""The time to the first token (TTFT) by context length, for Eq. 27: "dynamically looked up from Table 3 based on total
context length" (Appendix B.2)."""

from collections.abc import Mapping

import numpy as np

from lmms_eval_mai.errors import ArgumentError

TABLE_3_TOKENS = (128, 320, 512, 576, 768, 1088, 1280, 1536)
"""The total tokens of Table 3's columns: image and query."""
TABLE_3_MS = {
    "2B": (27.52, 28.005, 28.00, 27.92, 28.89, 45.96, 46.97, 49.80),
    "4B": (32.21, 32.470, 32.86, 34.66, 39.02, 65.87, 69.33, 77.86),
    "8B": (33.76, 36.495, 43.91, 47.93, 53.45, 94.27, 102.65, 115.31),
}
"""Size of the Qwen3-VL model -> milliseconds to the first token, from Table 3. Two of its columns have 320 tokens; the
value here is their mean. The paper profiled up to 8,192 tokens and prints the columns up to 1,536."""

TtftArgument = float | str | Mapping[int | str, float]
"""A number of seconds, a size of Table 3, or a table of tokens -> seconds."""


def ttft_table(argument: TtftArgument) -> dict[int, float]:
    """Return seconds by the tokens of the prompt, in increasing order of tokens. One number is a table with one entry.
    Raises `ArgumentError`."""
    if isinstance(argument, str) and argument in TABLE_3_MS:
        return {tokens: ms / 1000 for tokens, ms in zip(TABLE_3_TOKENS, TABLE_3_MS[argument], strict=True)}
    given = argument if isinstance(argument, Mapping) else {1: argument}
    try:
        table = {int(tokens): float(seconds) for tokens, seconds in given.items()}  # the keys of JSON are texts
    except (TypeError, ValueError):
        table = {}
    if not table or min(table) < 1 or not all(seconds >= 0 for seconds in table.values()):
        raise ArgumentError(
            f"ttft_s={argument} is invalid: expected a number of at least 0, one of {', '.join(TABLE_3_MS)} (Table 3), "
            'or a table of seconds by prompt tokens such as {"128": 0.03, "1536": 0.12}.'
        )
    return dict(sorted(table.items()))


def interpolate(table: Mapping[int, float], prompt_tokens: int) -> float:
    """Return the seconds for a prompt of this length, image tokens included.

    The value between two points is interpolated. The value beyond the last point continues the line of the last two
    points. A prompt that is shorter than the first point takes the time of that point.
    """
    if len(table) == 1:
        return next(iter(table.values()))
    tokens, seconds = list(table), list(table.values())
    beyond = prompt_tokens - tokens[-1]
    if beyond <= 0:
        return float(np.interp(prompt_tokens, tokens, seconds))
    slope = (seconds[-1] - seconds[-2]) / (tokens[-1] - tokens[-2])
    return max(0.0, seconds[-1] + slope * beyond)
