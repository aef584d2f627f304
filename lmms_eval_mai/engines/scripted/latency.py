"""The time to the first token (TTFT) by context length, for Eq. 27: "dynamically looked up from Table 3 based on total
context length" (Appendix B.2)."""

from collections.abc import Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Ttft:
    """Seconds to the first token by the length of the prompt."""

    points: tuple[tuple[int, float], ...]
    """Pairs of tokens and seconds, by tokens. A constant has one point."""

    @classmethod
    def of(cls, argument: TtftArgument) -> "Ttft":
        """Raises `ArgumentError`."""
        if isinstance(argument, str) and argument in TABLE_3_MS:
            return cls(tuple((n, ms / 1000) for n, ms in zip(TABLE_3_TOKENS, TABLE_3_MS[argument], strict=True)))
        table = argument if isinstance(argument, Mapping) else {1: argument}
        points = sorted(
            {_tokens(tokens): float(seconds) for tokens, seconds in table.items() if _is_seconds(seconds)}.items()
        )
        if not points or len(points) < len(table) or points[0][0] < 1:
            raise ArgumentError(
                f"ttft_s={argument} is invalid: expected a number of at least 0, one of {', '.join(TABLE_3_MS)} (Table "
                '3), or a table of seconds by prompt tokens such as {"128": 0.03, "1536": 0.12}.'
            )
        return cls(tuple(points))

    @property
    def is_constant(self) -> bool:
        """Return whether the length of the prompt makes no difference."""
        return len(self.points) == 1

    def seconds(self, prompt_tokens: int) -> float:
        """Return the seconds for a prompt of this length, image tokens included.

        The value between two points is interpolated. The value beyond the last point continues the line of the last two
        points. A prompt that is shorter than the first point takes the time of that point.
        """
        if self.is_constant or prompt_tokens <= self.points[0][0]:
            return self.points[0][1]
        last = len(self.points) - 1
        end = next((index for index, (tokens, _) in enumerate(self.points) if tokens >= prompt_tokens), last)
        (tokens, seconds), (end_tokens, end_seconds) = self.points[end - 1 : end + 1]
        slope = (end_seconds - seconds) / (end_tokens - tokens)
        return max(0.0, seconds + slope * (prompt_tokens - tokens))


def _tokens(value: object) -> int:
    """Return a key of a table as a number, 0 if it is invalid. The keys of JSON are texts."""
    text = str(value)
    return int(text) if text.isdecimal() else 0


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
