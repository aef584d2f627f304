"""The fields of a chat request that the server does not use, for docs/serve.md."""

import json
import textwrap
from collections import defaultdict

from lmms_eval_mai.serve.chat_request import IGNORED, NEUTRAL, UNUSED


def print_fields() -> None:
    """Print the fields that are ignored, and those that are accepted with some values only."""
    by_values: dict[str, list[str]] = defaultdict(list)
    for name, values in NEUTRAL.items():
        by_values[" or ".join(f"`{json.dumps(value)}`" for value in values)].append(name)
    options = ["image_url.detail", "stream_options.continuous_usage_stats", "stream_options.include_obfuscation"]
    print_item("Ignored", [*IGNORED, *options])
    print_item("Only `false`, `0`, `[]` or `{}`", UNUSED)
    for values, names in by_values.items():
        print_item(f"Only {values}", names)


def print_item(title: str, names: "list[str] | tuple[str, ...]") -> None:
    """Print an item of a list, wrapped at 120 characters."""
    text = f"* {title}: {', '.join(f'`{name}`' for name in sorted(names))}."
    print(textwrap.fill(text, 120, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False))
